"""`natgrad completion SHELL`: a script that completes commands, studies and flags."""

import io
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

from tyro.conf import Positional

from .output import Output


@dataclass(frozen=True)
class Completion:
    """Print a script for a shell that completes commands, studies and flags."""

    EXAMPLES: ClassVar = (
        'eval "$(natgrad completion bash)"',
        "natgrad completion zsh > ~/.zfunc/_natgrad",
        "natgrad completion fish > ~/.config/fish/completions/natgrad.fish",
    )

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """The shell."""
    json: bool = False
    """Print one JSON object on stdout, with the script in it."""

    def run(self, output: Output) -> None:
        """Print what the parser of the arguments makes of itself."""
        from .parsing import parsed

        script = io.StringIO()
        with redirect_stdout(script), suppress(SystemExit):
            parsed(["--tyro-write-completion", self.shell, "-"])
        if not output.as_json:
            output.line(script.getvalue().rstrip())
        output.done(shell=self.shell, script=script.getvalue())
