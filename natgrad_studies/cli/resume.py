"""`natgrad resume RUN`: go on with a study, or a comparison, that was stopped."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from natgrad.report import MARKER, FolderError, ResultFolder

from ..comparing import NAME, CompareSettings
from ..registry import STUDIES
from ..suggestions import unknown
from ..typed import filled
from .compare import execute as go_on_comparing
from .output import Output
from .study import execute


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped; a finished one gets its report anew."""

    EXAMPLES: ClassVar = ("natgrad resume results/waveform-inversion",)

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of the run: the --output of its study or comparison."""
    json: bool = False
    """Print one JSON object on stdout, and progress on stderr."""

    def run(self, output: Output) -> None:
        """Read the settings from the folder and run the study with them."""
        folder = self.run_folder
        if not folder.is_dir():
            raise FolderError(f"there is no folder {folder}")
        name, values = ResultFolder(folder).origin()
        if name == NAME:
            compared = CompareSettings.restored(values, str(folder / MARKER))
            go_on_comparing(replace(compared, output=folder), output)
            return
        if name not in STUDIES:
            raise FolderError(f"{folder / MARKER}: {unknown('study', name, list(STUDIES))}")
        study = STUDIES[name]
        first = next(iter(study.presets.values()))
        settings = filled(first, values, str(folder / MARKER))
        execute(study, replace(settings, output=folder), output)
