"""Executes docs/users/python.ipynb as a scientist would: submit, wait, DataFrame, plot."""
import ast
import json
import os
import unittest

import fixture

NOTEBOOK = fixture.SOURCE / "docs" / "users" / "python.ipynb"


def execute(notebook):
    """Executes the code cells in order. Returns the value of the last expression of each cell, which Jupyter would show, and the names."""
    names, shown = {}, []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names) if last else None)
    return shown, names


class NotebookTest(fixture.InDirectory):
    def test_the_notebook_runs_and_shows_what_the_command_line_shows(self):
        service = fixture.Service()
        self.addCleanup(service.close)
        os.environ["SCALELAB_SERVER"] = service.address
        notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
        shown, names = execute(notebook)
        self.assertEqual(len(shown), 7)
        _, _, runs, curve, curve_axes, losses, loss_axes = shown
        self.assertEqual(sorted(zip(runs["ranks"], runs["repeat"], runs["state"])),
                         [(ranks, repeat, "SUCCEEDED") for ranks in (1, 2) for repeat in (0, 1)])
        points = service.json("curve", "notebook")["series"][0]["points"]
        self.assertEqual(list(curve["throughput"]), [point["throughput"]["mean"] for point in points])
        self.assertEqual(list(curve_axes.lines[0].get_ydata()), list(curve["speedup"]))
        self.assertEqual(losses.shape, (8, 4))
        self.assertFalse(losses.isna().any(axis=None))
        self.assertEqual(len(loss_axes.lines), 4)
        names["client"].close()

    def test_the_notebook_is_stored_without_output(self):
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
            self.assertEqual((cell.get("outputs", []), cell.get("execution_count")), ([], None))


if __name__ == "__main__":
    unittest.main()
