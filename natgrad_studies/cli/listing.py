"""`natgrad list`: the studies, their presets, and the metrics that can be compared on them."""

from dataclasses import dataclass
from typing import ClassVar

from ..registry import STUDIES
from .output import Output


@dataclass(frozen=True)
class Listing:
    """List the studies."""

    EXAMPLES: ClassVar = ("natgrad list", "natgrad list --json")

    json: bool = False
    """Print one JSON object on stdout."""

    def run(self, output: Output) -> None:
        """Print a line about each study, its presets and its metrics."""
        studies = [
            {"name": study.name, "about": study.about, "presets": list(study.presets)}
            | {"metrics": list(study.metrics)}
            for study in STUDIES.values()
        ]
        if not output.as_json:
            for study in STUDIES.values():
                output.line(f"{study.name}  {study.about}")
                output.line(f"  presets: {', '.join(study.presets)}")
                if study.metrics:
                    output.line(f"  compare: {', '.join(study.metrics)}")
        output.done(studies=studies)
