"""The JSON Schema for editors accepts the example studies and those of the documents, and rejects mistakes."""
import json
import pathlib
import re
import unittest

import jsonschema
import yaml

TOP = pathlib.Path(__file__).resolve().parents[3]
SCHEMA = json.loads((TOP / "deploy/schema/study.schema.json").read_text(encoding="utf-8"))


def examples():
    for path in sorted((TOP / "deploy/studies").rglob("*.yaml")):
        yield path.name, path.read_text(encoding="utf-8")
    for path in sorted((TOP / "docs/users").glob("*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S):
            if re.search(r"^study:", block, flags=re.M):
                yield path.name, block


class SchemaTest(unittest.TestCase):
    def setUp(self):
        jsonschema.Draft7Validator.check_schema(SCHEMA)
        self.validator = jsonschema.Draft7Validator(SCHEMA)

    def errors(self, text):
        return [error.message for error in self.validator.iter_errors(yaml.safe_load(text))]

    def test_accepts_all_examples(self):
        names = []
        for name, text in examples():
            names.append(name)
            self.assertEqual(self.errors(text), [], name)
        self.assertGreater(len(names), 10)

    def test_rejects_mistakes(self):
        for mistake in (
            "study: s\nfixed: {params: 3}",
            "study: s\nfixed: {params: {a: [1]}}",
            "study: s\nfixed: {param.a: 1}",
            "study: s\nmatrix: {params.a: 1}",
            "study: s\nmeasure: {extract: [{metrik: a}]}",
            "study: s\nmeasure: {extract: [{metric: a, per: epoch}]}",
            "study: s\nfixed: {ranks: 0}",
            "study: s\nfixed: {precision: fp8}",
            "study: s\nfixed: {colour: red}",
            "study: s\nmatrix: {ranks: 2}",
            "study: s\nmatrix: {ranks: {pow3: [1, 8]}}",
            "study: s\nmatrix: {engine: [native/dpd]}",
            "study: s\norder: random",
            "study: s\nnotify: all",
            "study: s\nnotify: {mial: a@b.c}",
            "study: s\nrepeat: 3",
            "study: s\nrepeats: {min: 2, max: 10}",
            "study: s\nrepeats: {until: {half_with: 2%}}",
            "study: s\nadaptive_repeats: {min: 2}",
            "study: s\ncheckpoint: 10m",
            "study: s\ncheckpoint: {keep: 2}",
            "study: s\ncheckpoint: {every: 10m, keep: 0}",
            "study: s\ncheckpoint: {every: 10m, keeps: 2}",
            "fixed: {ranks: 1}",
        ):
            self.assertNotEqual(self.errors(mistake), [], mistake)

    def test_accepts_a_study_without_notifications(self):
        self.assertEqual(self.errors("study: s\nnotify: none"), [])
        self.assertEqual(self.errors("study: s\nnotify: {mail: a@b.c}"), [])

    def test_accepts_times_and_steps_between_checkpoints(self):
        self.assertEqual(self.errors("study: s\ncheckpoint: {every: 10m, keep: 2}"), [])
        self.assertEqual(self.errors("study: s\ncheckpoint: {every: 500}"), [])

    def test_accepts_models_of_custom_programs(self):
        self.assertEqual(self.errors("study: s\nfixed: {engine: custom, model: mine, command: [./train.sh], ranks: 1}"), [])


if __name__ == "__main__":
    unittest.main()
