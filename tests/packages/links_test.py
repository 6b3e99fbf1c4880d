"""cmake/Packages.cmake: in the installed documentation, each relative link leads to an installed file and to a heading of it."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

BUILD = os.environ.get("SCALELAB_BUILD_DIR", "")
FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)


def read(path):
    """Returns the text of a document without its blocks of code."""
    with open(path, encoding="utf-8") as file:
        return FENCE.sub("", file.read())


def anchors(text):
    """Returns the anchors that GitHub gives to the headings."""
    found = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        name, count = slug, 0
        while name in found:
            count += 1
            name = f"{slug}-{count}"
        found.add(name)
    return found


def broken_links(top):
    """Returns `FILE: LINK` for each relative link of a Markdown file below `top` whose target does not exist there."""
    broken = []
    for folder, _, names in sorted(os.walk(top)):
        for name in sorted(names):
            if not name.endswith(".md"):
                continue
            path = os.path.join(folder, name)
            # A word of code may contain brackets.
            for link in LINK.findall(re.sub(r"`[^`\n]*`", "``", read(path))):
                if re.match(r"[a-z]+:", link):
                    continue
                file, _, anchor = urllib.parse.unquote(link).partition("#")
                target = os.path.join(folder, file) if file else path
                inside = os.path.realpath(target).startswith(os.path.realpath(top) + os.sep)
                if not (inside and os.path.exists(target)) or (
                        anchor and target.endswith(".md") and anchor not in anchors(read(target))):
                    broken.append(f"{os.path.relpath(path, top)}: {link}")
    return broken


class Links(unittest.TestCase):
    def write(self, path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_the_check_finds_broken_links(self):
        with tempfile.TemporaryDirectory() as top:
            self.write(os.path.join(top, "docs", "a.md"),
                       "# `A b`: c?\n[x](../README.md) [x](#a-b-c) [x](b.md) [x](../README.md#no) [x](../..) `[x](y)`\n"
                       "```\n# D\n[x](z)\n```\n[x](#d) [x](https://example.org)\n")
            self.write(os.path.join(top, "README.md"), "[x](docs/a.md#a-b-c) ![x](docs)\n")
            self.assertEqual(broken_links(top), [f"docs/a.md: {link}" for link in ("b.md", "../README.md#no", "../..", "#d")])

    @unittest.skipUnless(BUILD, "SCALELAB_BUILD_DIR names no build")
    def test_the_installed_documents_have_no_broken_links(self):
        with tempfile.TemporaryDirectory() as top:
            subprocess.run(["cmake", "--install", BUILD, "--component", "doc", "--prefix", top], check=True,
                           stdout=subprocess.DEVNULL)
            documents = os.path.join(top, "share", "doc", "scalelab-doc")
            self.assertTrue(os.path.exists(os.path.join(documents, "docs", "users", "README.md")))
            self.assertTrue(os.path.exists(os.path.join(documents, "deploy", "studies", "quickstart.yaml")))
            self.assertTrue(os.path.exists(os.path.join(documents, "deploy", "studies", "..", "data", "test_batch.bin")))
            self.assertEqual(broken_links(documents), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
