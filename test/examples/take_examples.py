"""Writes the examples in the comments of headers, between @code and @endcode, as
one C++ file, each in a function of its own.

usage: take_examples.py OUTPUT HEADER...

An example may leave out what is the reader's: a line "...", the head of a loop
"for (...)", a value "= ...;", arguments "(...)". What a function cannot hold (a
main, an inline function) stands at namespace scope. Its names are those of
context.h.
"""

import re
import sys

# An example shows more than it uses, and a real main() need not return.
HEAD = """#include "test/examples/context.h"

#pragma GCC diagnostic ignored "-Wunused"
#pragma GCC diagnostic ignored "-Wreturn-type"
namespace examples {"""
CODE = re.compile(r"@code\n(.*?)@endcode", re.S)
COMMENT = re.compile(r"^ *///? ?")
LEFT_OUT = [
    (re.compile(r"^ *\.\.\.$", re.M), ""),
    (re.compile(r"for \(\.\.\.\)"), "while (goes_on())"),
    (re.compile(r"= \.\.\.;"), "= loss_of();"),
    (re.compile(r"\(\.\.\.\)"), "()"),
]
AT_NAMESPACE_SCOPE = re.compile(r"^ *(inline |int main\()", re.M)


def examples_in(text):
    """Line and text of each example."""
    for found in CODE.finditer(text):
        lines = found[1].splitlines()[:-1]  # then the comment of @endcode
        yield (text.count("\n", 0, found.start()) + 2,
               "\n".join(COMMENT.sub("", line) for line in lines))


def compilable(example):
    for what, instead in LEFT_OUT:
        example = what.sub(instead, example)
    return example


def main():
    output, *headers = sys.argv[1:]
    count = 0
    with open(output, "w") as file:
        print(HEAD, file=file)
        for header in headers:
            with open(header) as source:
                examples = list(examples_in(source.read()))
            for line, text in examples:
                count += 1
                in_function = not AT_NAMESPACE_SCOPE.search(text)
                print(f"namespace example_{count} {{", file=file)
                if in_function:
                    print("inline void run() {", file=file)
                print(f'#line {line} "{header}"', file=file)
                print(compilable(text), file=file)
                print("}" * (2 if in_function else 1), file=file)
        print("}  // namespace examples", file=file)
    if count == 0:
        sys.exit("Expected examples in the headers, but got none")


if __name__ == "__main__":
    main()
