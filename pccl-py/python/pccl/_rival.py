"""The package of PCCL 1.0, `pypccl`, has a module of the same name, in the same folder."""

from __future__ import annotations

import os
import sys
import warnings


def warn_of_pypccl() -> None:
    """Names the distribution `pypccl`, if it is installed where modules are looked for.

    Looks at names in folders only: `importlib.metadata` takes longer to import than all of this
    package.
    """
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            if name.startswith("pypccl-") and name.endswith(".dist-info"):
                version = name.removeprefix("pypccl-").removesuffix(".dist-info")
                warnings.warn(
                    f"pypccl {version} is installed in {folder}: its module is called pccl too, "
                    "and whichever was installed last has overwritten files of the other. "
                    "Uninstall both, then install pccl again.",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return
