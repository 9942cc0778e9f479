"""The JSON Schema of messages, and what it says of one."""

import json
import re
from pathlib import Path

import jsonschema
import msgspec

import kairos

PATH = Path(kairos.__file__).parent / "schemas" / "message.schema.json"
SCHEMA = json.loads(PATH.read_text("utf-8"))


def _pattern(validator, pattern, instance, schema):
    """As in ECMAScript, which JSON Schema means: `$` is the end, not a line's."""
    if isinstance(instance, str) and not re.search(pattern.replace("$", r"\Z"), instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern}")


_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _pattern})


def problems(kind, message):
    """What is wrong with a message, as an object, of that kind (a name in `$defs`)."""
    validator = _Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]})
    return [error.message for error in validator.iter_errors(message)]


def as_object(message):
    """A bus's message as the schema sees it."""
    return {
        "key": message.key,
        "headers": dict(message.headers),
        "value": msgspec.json.decode(message.value),
    }
