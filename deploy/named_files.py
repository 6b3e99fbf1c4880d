"""Finds names of files of the repository, in comments and documents, that do not exist.

Usage: deploy/named_files.py, in the top folder of a checkout. Prints a line for each finding.
A name is a path whose first component is a top folder and whose last has an extension, such as `db/store.h`. It may also start at
the folder of the text, or at a folder above it.
"""
import pathlib
import re
import subprocess
import sys

# Pairs of regular expressions: one for the names of files, and one for the start of a comment in these files. In a
# document, all text is checked.
COMMENTS = [
    (re.compile(r"\.md$"), re.compile(r"^")),
    (re.compile(r"\.(h|cc|cu|def|proto|js|mjs|css|ts)$"), re.compile(r"(?:^|\s)//|^\s*/?\*")),
    (re.compile(r"\.(py|sh|cmake|yaml|toml|supp|in)$|(^|/)(CMakeLists\.txt|[^./]+)$"), re.compile(r"(?:^|\s)#")),
]
# Files that are not checked, because they describe the past or contain expected output.
UNCHECKED = re.compile(r"^(CHANGELOG\.md|tests/golden/.*)$")


def listed_files():
    """Returns the files that git tracks, and the new files that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    return [name for name in names if name and pathlib.Path(name).is_file()]


def exists(name, text):
    """Returns whether the path `name` exists, from the folder of the file `text` or a folder above it."""
    return any((folder / name).exists() for folder in pathlib.Path(text).parents)


def findings(files):
    """Yields a line for each name of a file that does not exist."""
    tops = sorted({re.escape(name.split("/")[0]) for name in files if "/" in name})
    path = re.compile(r"(?<![\w./$}*-])(?:" + "|".join(tops) + r")/[\w./-]*\w\.[A-Za-z]\w*(?![\w/*{<-])")
    for file in files:
        start = next((begin for ends, begin in COMMENTS if ends.search(file)), None)
        if start is None or UNCHECKED.search(file):
            continue
        for number, line in enumerate(pathlib.Path(file).read_text(errors="replace").splitlines(), 1):
            comment = start.search(line)
            for name in path.findall(line[comment.start():]) if comment else []:
                if not exists(name, file):
                    yield f"{file}:{number}: there is no file {name}"


if __name__ == "__main__":
    for finding in findings(listed_files()):
        sys.stdout.write(finding + "\n")
