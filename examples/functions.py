"""The functions that flows of this folder call."""

from kairos.flow import Functions

functions = Functions()


def in_text(figures: list[dict[str, str]], text: str) -> list[bool]:
    """Whether the value of each figure stands in the text."""
    return [bool(each["value"].strip()) and each["value"].strip() in text for each in figures]


functions.register(in_text, purity="pure", version="1")
