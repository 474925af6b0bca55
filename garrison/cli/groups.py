"""Command groups that answer a wrong word with the right one."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from garrison.errors import InvalidSpec


class Group(TyperGroup):
    """A noun: alone it prints its help, an unknown verb names the right one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments left for the verb; none at all asks for help."""
        bare = not args and not ctx.resilient_parsing
        return super().parse_args(ctx, ["--help"] if bare else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the verb's command and its arguments.

        Raises:
            InvalidSpec: There is no such verb; says which was probably meant.
        """
        word = args[0]
        known = self.get_command(ctx, word) is not None
        if not known and not word.startswith("-") and not ctx.resilient_parsing:
            # Imported late: only a mistake needs it.
            from garrison.cli.verbs import correction

            raise InvalidSpec(correction(ctx.command_path, word, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)
