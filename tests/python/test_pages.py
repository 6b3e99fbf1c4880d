"""Pages and pictures that commands write, opened as files in headless Chromium: reports, proposals and SVG pictures."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import unittest

import browser

from fixture import PROGRAMS, SOURCE, TRAIN, WITHIN, InDirectory, Service, study_of

WIDTHS = (400, 1280, 2000)
# Writes the pictures of tests/unit/client/picture_samples.h.
SAMPLES = PROGRAMS.parent / "tests" / "client_program_test"

# A picture whose texts are on a line, on an unfilled path, on a filled mark, next to a mark, and in the arc of a path.
FAULTY = """<!DOCTYPE html><title>faults</title><svg width="400" height="300" viewBox="0 0 400 300">
<rect width="100%" height="100%" fill="#fff"/>
<text x="20" y="40">on a line</text><line x1="0" y1="36" x2="200" y2="36" stroke="#000"/>
<text x="20" y="90">on a path</text><path d="M0 60L150 110" fill="none" stroke="#000"/>
<text x="20" y="140">on a mark</text><circle cx="40" cy="135" r="5"/>
<text x="20" y="190">next to a mark</text><circle cx="10" cy="186" r="5"/>
<text x="60" y="250">in an arc</text><path d="M40 290V220H200V290" fill="none" stroke="#000"/>
</svg>"""


@unittest.skipIf(browser.available(), browser.available())
class PagesTest(InDirectory):
    def setUp(self) -> None:
        super().setUp()
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)
        self.browser.resize(1280, 900)

    def show(self, path: pathlib.Path) -> None:
        self.browser.open(path.as_uri())
        self.browser.wait_for("return document.readyState === 'complete'")

    def check_texts(self, path: pathlib.Path) -> None:
        texts = self.browser.run("return document.querySelectorAll('svg text').length")
        self.assertGreater(texts, 3, path.name)
        self.assertEqual(self.browser.faults_of_texts(), [], path.name)

    def test_texts_on_lines_and_marks_are_found(self) -> None:
        self.show(pathlib.Path(self.write("faulty.html", FAULTY)))
        faults = self.browser.faults_of_texts()
        self.assertEqual([fault.split("'")[1] for fault in faults], ["on a line", "on a path", "on a mark"], faults)

    def test_texts_of_pictures_are_on_nothing_and_within_the_picture(self) -> None:
        done = subprocess.run([SAMPLES, "--gtest_filter=Pictures.*"], env={**os.environ, "SCALELAB_PICTURES": str(self.dir)},
                              capture_output=True, text=True, timeout=WITHIN, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        pictures = sorted([*self.dir.glob("*.svg"), *(SOURCE / "docs" / "users").glob("*.svg")])
        names = {path.stem for path in pictures}
        self.assertLessEqual({"sample", "200_cells", "lines_12", "lines_60", "factors", "factors_12"}, names)
        for path in pictures:
            with self.subTest(path.name):
                self.show(path)
                self.check_texts(path)
                self.browser.screenshot(path.stem)
        self.assertEqual(self.browser.console(), [])

    def test_reports_work_at_each_width_in_light_and_dark(self) -> None:
        os.chdir(self.dir)
        self.write("train.py", TRAIN)
        service = Service("local_slots: 2\n")
        self.addCleanup(service.close)
        # The runs with a large momentum fail.
        study = study_of(matrix={"ranks": [1, 2], "momentum": [0.5, 0.9, 0.99]}, repeats=3, retry={"max": 0})
        name = service.run("study", "submit", self.write("study.yaml", json.dumps(study))).split()[0]
        service.wait_for_end(name)
        for page, more in (("report", ()), ("proposal", ("--proposal",))):
            path = self.dir / f"{page}.html"
            service.run("study", "report", name, "-o", str(path), *more)
            self.show(path)
            for dark in (False, True):
                self.browser.dark(dark)
                self.assertEqual(self.browser.violations(), [], f"{page}, {'dark' if dark else 'light'}")
            for width in WIDTHS:
                self.browser.resize(width, 900)
                self.assertEqual(self.browser.overflow(), [], f"{page} at {width} pixels")
                self.check_texts(path)
                self.browser.screenshot(f"{page}-{width}")
        pages = {(self.dir / f"{page}.html").as_uri() for page in ("report", "proposal")}
        self.assertEqual({url for url in self.browser.requested() if not url.startswith("data:")}, pages)
        self.assertEqual(self.browser.console(), [])


if __name__ == "__main__":
    unittest.main()
