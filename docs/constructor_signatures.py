"""A griffe extension for the API page: constructors that Python generates from fields.

Equinox modules and named tuples have no `__init__` in the source, so a reader of the source
(which griffe is) sees none. This writes one from the annotated fields.
"""

from typing import Any

import griffe


class ConstructorSignatures(griffe.Extension):
    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        fields = [member for member in cls.members.values() if _is_field(member)]
        if not fields or "__init__" in cls.members or "dataclass" in str(cls.decorators):
            return
        kind = griffe.ParameterKind.positional_or_keyword
        parameters = griffe.Parameters(
            griffe.Parameter("self", kind=kind),
            *(
                griffe.Parameter(f.name, annotation=f.annotation, kind=kind, default=_default(f))
                for f in fields
            ),
        )
        cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))


def _is_field(member: griffe.Object | griffe.Alias) -> bool:
    return (
        isinstance(member, griffe.Attribute)
        and member.annotation is not None
        and "instance-attribute" in member.labels  # a ClassVar is no argument
        and not member.name.startswith("_")
        and "property" not in member.labels
    )


def _default(field: griffe.Attribute) -> Any:
    """The default itself, or the one inside `field(default=…)` or `setting(name, …)`."""
    call = field.value
    if not isinstance(call, griffe.ExprCall):
        return call
    for argument in call.arguments:
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default":
            return argument.value
    positional = [a for a in call.arguments if not isinstance(a, griffe.ExprKeyword)]
    return positional[1] if len(positional) > 1 else None
