"""Which folder may include which: docs/architecture.md defines the order.

usage: layers_test.py          checks the repository, prints its rooms and arrows
       layers_test.py --graph  also prints each arrow
       layers_test.py --csv    prints the rooms in order with what each includes,
                               for scripts/plot

A room is a folder with sources. A folder `detail` is part of the room that holds
it. The page lists the rooms from the lowest to the highest; a room includes only
lower rooms, which stand above it in the list.
"""

import collections
import os
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
# The folders that each tree may include: whole trees, or rooms with all folders below them.
TREES = {"ddp": ["ddp"], "dp": ["ddp", "dp"], "launcher": ["ddp/base", "launcher"]}
# A separate program with LibTorch, which ddprun only starts.
PROGRAMS_OVER_DDP = ["launcher/doctor/allreduce"]
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]((?:ddp|dp|launcher)/[^">]+)[">]', re.M)


def listed_rooms(page):
    """Returns the rooms of the page's list, from the lowest to the highest."""
    block = re.search(r"```text\n(ddp/base.*?)```", page, re.S)
    if not block:
        raise SystemExit(f"Expected a list of rooms, from ddp/base on, in {PAGE}")
    return [line.split()[0] for line in block[1].splitlines() if line.strip()]


def sources():
    """Returns {file: text} of ddp, dp and launcher."""
    found = {}
    for tree in TREES:
        for folder, _, names in os.walk(ROOT / tree):
            for name in names:
                if name.endswith((".h", ".cpp")):
                    path = pathlib.Path(folder, name)
                    found[str(path.relative_to(ROOT))] = path.read_text()
    return found


def room_of(file):
    folder = os.path.dirname(file)
    return re.sub(r"(^|/)detail(/.*)?$", "", folder)


def is_within(file, folder):
    return file.startswith(folder + "/")


def is_forwarding(text):
    """Returns whether the file is nothing but an include."""
    lines = [line for line in text.splitlines() if line.strip()]
    return (len(lines) == 2 and lines[0] == "#pragma once"
            and INCLUDE.match(lines[1]) is not None)


def arrows_of(files):
    """Returns {(room, room): [(file, included file)]}."""
    arrows = collections.defaultdict(list)
    for file, text in files.items():
        if is_forwarding(text):
            continue
        for included in INCLUDE.findall(text):
            if room_of(file) != room_of(included):
                arrows[room_of(file), room_of(included)].append((file, included))
    return arrows


def circles_of(arrows):
    """Returns rooms that include each other, directly or through other rooms."""
    targets = collections.defaultdict(set)
    for a, b in arrows:
        targets[a].add(b)
    reached = {}
    for start in list(targets):
        seen, todo = set(), [start]
        while todo:
            for room in targets[todo.pop()] - seen:
                seen.add(room)
                todo.append(room)
        reached[start] = seen
    circles = {frozenset([a, *(b for b in reached[a] if a in reached.get(b, ()))])
               for a in reached if a in reached[a]}
    return sorted(map(sorted, circles))


def problems(files, rooms):
    """Returns the errors, one line each."""
    found = []
    place = {room: number for number, room in enumerate(rooms)}
    used = {room_of(file) for file, text in files.items()
            if not is_forwarding(text)}
    for room in sorted(used - set(rooms)):
        found.append(f"{room}: expected it in the list of rooms, but it is not")
    for room in sorted(set(rooms) - used):
        found.append(f"{room}: expected sources in this listed room, but got none")
    for circle in circles_of(arrows_of(files)):
        found.append("a circle of rooms: " + ", ".join(circle))
    for file, text in sorted(files.items()):
        if is_forwarding(text):
            continue
        room = room_of(file)
        allowed = list(TREES[file.split("/")[0]])
        if room in PROGRAMS_OVER_DDP:
            allowed.append("ddp")
        for included in INCLUDE.findall(text):
            arrow = f"{file} includes {included}"
            if not any(is_within(included, tree) for tree in allowed):
                found.append(f"{arrow}: expected only {' and '.join(allowed)}")
            elif place.get(room_of(included), -1) > place.get(room, len(rooms)):
                found.append(f"{arrow}: expected a lower room than {room}")
            holder = re.match(r"(.*?)/detail/", included)
            if holder and not is_within(file, holder[1]):
                found.append(f"{arrow}: expected this only within {holder[1]}")
            if is_forwarding(files.get(included, "")):
                found.append(f"{arrow}: expected the header that it forwards to")
    return found


class Layers(unittest.TestCase):
    maxDiff = None

    def test_the_rooms_include_lower_ones_alone(self):
        self.assertEqual(problems(sources(), listed_rooms(PAGE.read_text())), [])

    def problems_of(self, **more):
        rooms = ["ddp/base", "ddp/job", "ddp/wrap", "dp", "launcher/net"]
        files = {
            "ddp/base/text.h": "",
            "ddp/wrapper.h": '#pragma once\n\n#include "ddp/wrap/wrapper.h"\n',
            "ddp/job/group.h": '#include "ddp/base/text.h"\n',
            "ddp/job/detail/line.cpp": '#include "ddp/job/group.h"\n',
            "ddp/wrap/wrapper.h": '#include "ddp/job/group.h"\n',
            "dp/data_parallel.h": '#include "ddp/wrap/wrapper.h"\n',
            "launcher/net/link.h": '#include "ddp/base/text.h"\n',
        }
        files |= {name: f'#include "{included}"\n'
                  for name, included in more.get("files", {}).items()}
        return problems(files, rooms + more.get("rooms", []))

    def test_what_is_right_has_no_problem(self):
        self.assertEqual(self.problems_of(), [])

    def test_what_is_wrong_is_found(self):
        wrong = [
            ("ddp/job/up.h", "ddp/wrap/wrapper.h", "expected a lower room"),
            ("ddp/job/up.h", "ddp/wrap/wrapper.h", "a circle of rooms"),
            ("ddp/wrap/in.h", "ddp/job/detail/line.h", "only within ddp/job"),
            ("dp/use.h", "ddp/wrapper.h", "that it forwards to"),
            ("launcher/net/big.h", "ddp/job/group.h",
             "expected only ddp/base and launcher"),
            ("ddp/new/a.h", "ddp/base/text.h", "in the list of rooms"),
        ]
        for file, included, problem in wrong:
            with self.subTest(file=file):
                found = self.problems_of(files={file: included})
                self.assertTrue(any(problem in one for one in found), found)
        self.assertEqual(self.problems_of(rooms=["launcher/gone"]), [
            "launcher/gone: expected sources in this listed room, but got none"])


def print_graph(with_arrows):
    files = sources()
    arrows = arrows_of(files)
    rooms = {room_of(file) for file, text in files.items()
             if not is_forwarding(text)}
    print(f"{len(rooms)} rooms, {len(arrows)} arrows, "
          f"{len(circles_of(arrows))} circles")
    if with_arrows:
        for (a, b), includes in sorted(arrows.items()):
            print(f"{a} -> {b}  ({len(includes)})")


def print_csv():
    arrows = arrows_of(sources())
    print("room,includes")
    for room in listed_rooms(PAGE.read_text()):
        print(room + "," + " ".join(b for a, b in sorted(arrows) if a == room))


if __name__ == "__main__":
    if "--csv" in sys.argv:
        print_csv()
        sys.exit()
    print_graph("--graph" in sys.argv)
    sys.argv = sys.argv[:1]
    unittest.main()
