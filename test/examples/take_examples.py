"""Writes all examples as one C++ file, each in its own function. Examples are
the text between @code and @endcode in comments of headers, and between
```cpp and ``` in pages.

usage: take_examples.py OUTPUT HEADER_OR_PAGE...

An example of a page is not compiled if the line before it is
<!-- not compiled: REASON -->.

An example may omit code of the reader: a line "...", the head of a loop
"for (...)", a value "= ...;", arguments "(...)". Code that is not allowed in a
function (a main, an inline function) is placed at namespace scope. Undeclared
names are those of context.h.
"""

import re
import sys

# An example may declare unused names, and a real main() need not return.
HEAD = """#include "test/examples/context.h"

#pragma GCC diagnostic ignored "-Wunused"
#pragma GCC diagnostic ignored "-Wreturn-type"
namespace examples {"""
CODE = re.compile(r"@code\n(.*?)@endcode", re.S)
BLOCK = re.compile(r"^(<!-- not compiled: \S.* -->\n)?```cpp\n((?:.*\n)*?)```$", re.M)
COMMENT = re.compile(r"^ *///? ?")
LEFT_OUT = [
    (re.compile(r"^ *\.\.\.$", re.M), ""),
    (re.compile(r"for \(\.\.\.\)"), "while (goes_on())"),
    (re.compile(r"= \.\.\.;"), "= loss_of();"),
    (re.compile(r"\(\.\.\.\)"), "()"),
]
AT_NAMESPACE_SCOPE = re.compile(r"^ *(inline |int main\()", re.M)


def examples_of_page(text):
    """Line and text of each example."""
    for found in BLOCK.finditer(text):
        if not found[1]:
            yield text.count("\n", 0, found.start(2)) + 1, found[2]


def examples_of_header(text):
    """Line and text of each example."""
    for found in CODE.finditer(text):
        lines = found[1].splitlines()[:-1]  # without the line of @endcode
        yield (text.count("\n", 0, found.start()) + 2,
               "\n".join(COMMENT.sub("", line) for line in lines))


def compilable(example):
    for what, instead in LEFT_OUT:
        example = what.sub(instead, example)
    return example


def main():
    output, *paths = sys.argv[1:]
    count = 0
    with open(output, "w") as file:
        print(HEAD, file=file)
        for path in paths:
            with open(path) as source:
                text = source.read()
            of_kind = examples_of_page if path.endswith(".md") else examples_of_header
            for line, text in of_kind(text):
                count += 1
                in_function = not AT_NAMESPACE_SCOPE.search(text)
                print(f"namespace example_{count} {{", file=file)
                if in_function:
                    print("void run() {", file=file)
                print(f'#line {line} "{path}"', file=file)
                print(compilable(text), file=file)
                print("}" * (2 if in_function else 1), file=file)
        print("}  // namespace examples", file=file)
    if count == 0:
        sys.exit("Expected examples in the headers and pages, but got none")


if __name__ == "__main__":
    main()
