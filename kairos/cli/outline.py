"""Figures for people."""


def outline(figures: object, indent: str = "") -> str:
    """Nested figures, one a line."""
    if not isinstance(figures, dict):
        return f" {figures}"
    lines = [f"{indent}{name}:{outline(value, indent + '  ')}" for name, value in figures.items()]
    return ("\n" if indent else "") + "\n".join(lines)
