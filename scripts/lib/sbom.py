#!/usr/bin/env python3
"""Prints the software that ddprun contains, as CycloneDX JSON (SBOM).

  sbom.py FOLDER > ddprun.cdx.json     FOLDER: of ./scripts/wheel

The headers are those that ninja recorded, the parts of zig's libraries those in
the symbol table of the program before it was stripped. A header or an object
file of any other origin is an error. SOURCE_DATE_EPOCH is the document's time,
DDP_REPOSITORY_URL the address of the repository. Runs in the environment of
./scripts/release."""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from importlib.metadata import version
from pathlib import Path

import ziglang
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.elffile import ELFFile

SOURCE = Path(__file__).resolve().parents[2]
ZIG = Path(ziglang.__file__).resolve().parent

# Folder of the headers: name, licence, tags on GitHub, macros of the version.
HEADERS = {
    "CLI": ("CLI11", "BSD-3-Clause", "cliutils/cli11@v", "CLI11_VERSION_"),
    "spdlog": ("spdlog", "MIT", "gabime/spdlog@v", "SPDLOG_VER_"),
    "fmt": ("fmt", "MIT", "fmtlib/fmt@", "FMT_VERSION"),
    "nlohmann": ("nlohmann-json", "MIT", "nlohmann/json@v", "NLOHMANN_JSON_VERSION_"),
}
LLVM = {"expression": "Apache-2.0 WITH LLVM-exception"}
GLIBC = "LGPL-2.1-or-later, with unlimited permission to link the compiled files"
# Folder of zig's copy: name, licence.
ZIGS = {
    "libcxx": ("libc++", LLVM),
    "libcxxabi": ("libc++abi", LLVM),
    "libunwind": ("libunwind", LLVM),
    "libc/glibc": ("glibc's start files", {"license": {"name": GLIBC}}),
    "compiler_rt": ("zig's compiler_rt", {"license": {"id": "MIT"}}),
}


def defined(macro, text):
    """The number of a macro."""
    found = re.search(rf"^\s*#\s*define {macro}\s+(\d+)", text, re.MULTILINE)
    if not found:
        sys.exit(f"error: expected the macro {macro} in a header, but found none")
    return int(found[1])


def numbers(packed):
    """"9.1.0" from 90100."""
    return f"{packed // 10000}.{packed // 100 % 100}.{packed % 100}"


def header_version(macro, folder):
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    text = "\n".join(file.read_text(errors="replace") for file in files)
    if not macro.endswith("_"):
        return numbers(defined(macro, text))
    parts = ("MAJOR", "MINOR", "PATCH")
    return ".".join(str(defined(macro + part, text)) for part in parts)


def libraries_in_headers(build, folder):
    """Components of the headers that the compiler has read."""
    deps = subprocess.run(
        [sys.executable, "-m", "ninja", "-C", build, "-t", "deps"],
        check=True, capture_output=True, text=True).stdout
    read = set()
    for line in deps.splitlines():
        if not line.startswith("    "):
            continue
        file = Path(os.path.normpath(build / line.strip()))
        if file.is_relative_to(folder):
            read.add(file.relative_to(folder).parts[0])
        elif not any(file.is_relative_to(own) for own in (build, SOURCE, ZIG)):
            sys.exit(f"error: {file} belongs to no library that sbom.py knows")
    if unknown := read - HEADERS.keys():
        sys.exit(f"error: sbom.py does not know the headers {sorted(unknown)}")
    for name in sorted(read):
        title, licence, tags, macro = HEADERS[name]
        number = header_version(macro, folder / name)
        yield {
            "type": "library",
            "bom-ref": title,
            "name": title,
            "version": number,
            "licenses": [{"license": {"id": licence}}],
            "purl": f"pkg:github/{tags}{number}",
        }


def origin_of(source, build):
    """Folder of the zig library with a source file; "" for a file of ours."""
    if source == "compiler_rt":
        return source
    for folder in ZIGS:
        if next((ZIG / "lib" / folder).rglob(source), None):
            return folder
    if next(build.rglob(source), None) or next(SOURCE.rglob(source), None):
        return ""
    sys.exit(f"error: {source}, a file in the symbol table, has no known origin")


def zig_libraries(build):
    """Components of zig's libraries that the linker has put in."""
    with (build / "bin" / "ddprun").open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".symtab").iter_symbols()
        sources = {s.name for s in symbols if s["st_info"]["type"] == "STT_FILE"}
    origins = {origin_of(source, build) for source in sources} - {""}
    config = (ZIG / "lib/libcxx/include/__config").read_text()
    llvm = numbers(defined("_LIBCPP_VERSION", config))
    zig = version("ziglang")
    for folder in sorted(origins):
        title, licence = ZIGS[folder]
        component = {
            "type": "library",
            "bom-ref": title,
            "name": title,
            "licenses": [licence],
            "description": f"The copy in zig {zig}",
        }
        if folder == "compiler_rt":
            component["version"] = zig
        elif licence is LLVM:
            component["version"] = llvm
        yield component


def main(folder):
    build = folder / "build"
    program = folder / "ddprun"
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    number = subprocess.run([program, "--version"], check=True,
                            capture_output=True, text=True).stdout.split()[-1]
    time = datetime.datetime.fromtimestamp(
        int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    components = [*libraries_in_headers(build, folder / "headers" / "include"),
                  *zig_libraries(build)]
    ddprun = {
        "type": "application",
        "bom-ref": "ddprun",
        "name": "ddprun",
        "version": number,
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "licenses": [{"license": {"id": "BSD-3-Clause"}}],
    }
    if url := os.environ.get("DDP_REPOSITORY_URL"):
        ddprun["externalReferences"] = [{"type": "vcs", "url": url}]
    document = json.dumps({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, digest).urn,
        "version": 1,
        "metadata": {"timestamp": time.isoformat(), "component": ddprun},
        "components": components,
        "dependencies": [{
            "ref": "ddprun",
            "dependsOn": [component["bom-ref"] for component in components],
        }],
    }, indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(document):
        sys.exit(f"error: the document is not CycloneDX 1.6: {error}")
    print(document)


main(Path(sys.argv[1]).resolve())
