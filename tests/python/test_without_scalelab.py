"""Reports and bundles on a machine without scalelab: what a page refers to, and a bundle in a root with only tar and sha256sum."""
from __future__ import annotations

import csv
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from fixture import TRAIN, WITHIN, InDirectory, Service, study_of

UNSHARE = [shutil.which("unshare") or "unshare", *([] if os.geteuid() == 0 else ["--map-root-user"])]
LOADING = ("audio", "base", "embed", "frame", "iframe", "link", "object", "script", "source", "track", "video")
ADDRESSES = ("action", "background", "cite", "data", "formaction", "href", "longdesc", "manifest", "ping", "poster", "src", "srcdoc",
             "srcset", "xlink:href")
# Style rules that load another file.
STYLES = re.compile(r"""@import|\burl\((?!\s*['"]?(?:#|data:))""", re.IGNORECASE)

# A page that refers to other files and addresses, to a part of itself, and to data in itself.
REFERRING = """<!DOCTYPE html><html><head><meta http-equiv="refresh" content="9; url=next.html"><link rel="icon" href="icon.svg">
<style>@import "more.css"; p { background: url('back.png') }</style><script>1</script></head>
<body xmlns="http://www.w3.org/1999/xhtml"><a href="#part">part</a><img src="data:image/png;base64,AA=="><a href="https://x.org">x</a>
<p style="background: url(http://x.org/back.png)">https://x.org is only a text</p><img src="picture.png">
<svg xmlns="http://www.w3.org/2000/svg"><use xlink:href="other.svg#mark"/><path fill="url(#hatch)"/></svg></body></html>"""


class References(html.parser.HTMLParser):
    """Collects the references of a page, except those to parts of itself, as "TAG ATTRIBUTE" or "TAG"."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        if tag in LOADING:
            self.found.append(tag)
        for name, value in attrs:
            text = (value or "").strip()
            address = name in ADDRESSES and not text.startswith(("#", "data:"))
            foreign = "://" in text and not name.startswith("xmlns")  # the names of namespaces are never loaded
            if address or foreign or STYLES.search(text) or (name == "http-equiv" and text.lower() == "refresh"):
                self.found.append(f"{tag} {name}")

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if self._style:
            self.found += ["style" for _ in STYLES.findall(data)]


def references(page: str) -> list[str]:
    parser = References()
    parser.feed(page)
    parser.close()
    return parser.found


class WithoutScalelabTest(InDirectory):
    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service("local_slots: 2\n")
        cls.addClassCleanup(cls.service.close)
        train, file = cls.service.dir / "train.py", cls.service.dir / "study.yaml"
        train.write_text(TRAIN, encoding="utf-8")
        # The runs with a large momentum fail.
        study = study_of(matrix={"ranks": [1, 2], "momentum": [0.9, 0.99]}, retry={"max": 0})
        study["fixed"]["command"][1] = str(train)
        file.write_text(json.dumps(study), encoding="utf-8")
        cls.study = cls.service.run("study", "submit", str(file)).split()[0]
        cls.service.wait_for_end(cls.study)

    def test_the_references_of_a_page_are_found(self) -> None:
        self.assertEqual(references(REFERRING), ["meta http-equiv", "link", "link href", "style", "style", "script", "a href", "p style",
                                                 "img src", "use xlink:href"])

    def test_a_report_refers_to_no_file_and_no_address(self) -> None:
        for page, more in (("report", ()), ("proposal", ("--proposal",))):
            with self.subTest(page):
                path = self.dir / f"{page}.html"
                self.service.run("study", "report", self.study, "-o", str(path), *more)
                text = path.read_text(encoding="utf-8")
                self.assertIn("</svg>", text)
                self.assertEqual(references(text), [])

    def make_root(self) -> pathlib.Path:
        """Returns a root directory that contains tar, sha256sum and their shared libraries, and an empty directory `shared`."""
        root = self.dir / "root"
        (root / "bin").mkdir(parents=True)
        (root / "shared").mkdir()
        for name in ("tar", "sha256sum"):
            program = shutil.which(name)
            shutil.copy(program, root / "bin" / name)
            linked = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=WITHIN, check=True).stdout
            for library in re.findall(r"(/\S+) \(0x", linked):
                copy = root / library.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, copy)
        return root

    @staticmethod
    def enter(root: pathlib.Path, program: str, *arguments: str) -> subprocess.CompletedProcess:
        """Executes a program of `root` in its directory `shared`."""
        command = [*UNSHARE, f"--root={root}", "--wd=/shared", f"/bin/{program}", *arguments]
        return subprocess.run(command, env={"LC_ALL": "C"}, capture_output=True, text=True, timeout=WITHIN, check=False)

    @unittest.skipIf(subprocess.run([*UNSHARE, "--root=/", "true"], capture_output=True, check=False).returncode,
                     "this system does not allow another root directory")
    def test_tar_and_sha256sum_check_a_bundle_in_a_root_without_scalelab(self) -> None:
        root = self.make_root()
        shared = root / "shared"
        self.service.run("study", "bundle", self.study, "-o", str(shared / "study.tar"))
        opened = self.enter(root, "tar", "xf", "study.tar")
        self.assertEqual(opened.returncode, 0, opened.stderr)
        names = {path.name for path in shared.iterdir()} - {"study.tar"}
        self.assertLessEqual({"README.txt", "report.html", "curve.json", "curve.csv", "runs.csv", "metrics.csv", "provenance.json",
                              "study.yaml"}, names)
        checked = self.enter(root, "sha256sum", "--strict", "-c", "SHA256SUMS")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        # Each file has a checksum, except the two that contain checksums.
        self.assertEqual(sorted(checked.stdout.splitlines()), sorted(f"{name}: OK" for name in names - {"SHA256SUMS", "bundle.sha256"}))
        self.assertEqual(references((shared / "report.html").read_text(encoding="utf-8")), [])
        self.assertTrue(json.loads((shared / "curve.json").read_text(encoding="utf-8"))["series"])
        with (shared / "runs.csv").open(encoding="utf-8", newline="") as runs:
            self.assertEqual(len(list(csv.DictReader(runs))), 8)
        with (shared / "runs.csv").open("a", encoding="utf-8") as runs:
            runs.write("x")
        damaged = self.enter(root, "sha256sum", "--strict", "-c", "SHA256SUMS")
        self.assertEqual(damaged.returncode, 1)
        self.assertIn("runs.csv: FAILED\n", damaged.stdout)


if __name__ == "__main__":
    unittest.main()
