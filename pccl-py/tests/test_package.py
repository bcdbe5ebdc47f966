"""The package as it is installed: what it needs, how large it is, how long it takes to import."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import sys
from pathlib import Path

import pccl
import pytest
from child import Child
from elf import needed_versions

WHEELS = Path(__file__).resolve().parents[2] / "dist"

MOST_BYTES = 6_000_000
MOST_IMPORT_MS = 50.0


def extension() -> Path:
    return Path(str(pccl._native.__file__))


def the_wheel() -> Path:
    found = sorted(WHEELS.glob("pccl-*.whl"))
    if not found:
        pytest.skip("dist/ has no wheel: build it with pccl-py/wheel.sh")
    assert len(found) == 1, found
    return found[0]


def test_one_wheel_serves_every_python_and_is_small() -> None:
    wheel = the_wheel()
    assert "-cp310-abi3-" in wheel.name
    assert wheel.stat().st_size <= MOST_BYTES
    assert f"-{pccl.__version__}-" in wheel.name
    if sys.platform == "linux":
        assert "-manylinux_2_28_" in wheel.name


@pytest.mark.skipif(sys.platform != "linux", reason="symbol versions of glibc")
def test_no_glibc_newer_than_2_28_is_needed() -> None:
    versions = needed_versions(extension())
    glibc = [
        tuple(map(int, v.removeprefix("GLIBC_").split(".")))
        for v in versions
        if v.startswith("GLIBC_")
    ]
    assert glibc and max(glibc) <= (2, 28), sorted(versions)
    assert not [v for v in versions if v.startswith(("GLIBCXX", "CXXABI", "GOMP", "OMP"))]


def test_the_version_is_that_of_the_distribution() -> None:
    try:
        installed = importlib.metadata.version("pccl")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("it is imported from its sources")
    assert pccl.__version__ == installed


# In time of the processor: what else the machine does is not the package's.
IMPORT = """
import time
import numpy
begin = time.process_time()
import pccl
print((time.process_time() - begin) * 1000)
"""


def test_the_import_takes_little_longer_than_numpys() -> None:
    times = []
    for _ in range(9):
        with Child("-c", IMPORT) as child:
            status, output, errors = child.end()
            assert status == 0, errors
            times.append(float(output))
    assert statistics.median(times) <= MOST_IMPORT_MS, times


def test_torch_is_not_imported() -> None:
    with Child(
        "-c", "import pccl, sys; print(sorted({'torch', 'ml_dtypes'} & set(sys.modules)))"
    ) as c:
        assert c.end()[1].strip() == "[]"


def test_an_installed_pypccl_is_detected_and_named(tmp_path: Path) -> None:
    (tmp_path / "pypccl-1.0.0.dist-info").mkdir()
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with Child("-c", "import pccl", environment={"PYTHONPATH": path}) as child:
        status, _, errors = child.end()
    assert status == 0
    assert "RuntimeWarning: pypccl 1.0.0 is installed in " in errors and str(tmp_path) in errors
    assert "Uninstall both" in errors
    with Child("-W", "error", "-c", "import pccl") as child:
        status, _, errors = child.end()
        assert (status, errors) == (0, ""), "no warning without it"


def test_this_is_a_cpython_that_the_wheel_is_for() -> None:
    assert platform.python_implementation() == "CPython"
    assert sys.version_info >= (3, 10)


def test_every_public_name_is_documented() -> None:
    for name in pccl.__all__:
        thing = getattr(pccl, name)
        assert name == "__version__" or thing.__doc__, name
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                if not member.startswith("_") and callable(value):
                    assert value.__doc__, f"{name}.{member}"
