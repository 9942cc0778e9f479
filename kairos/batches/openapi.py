"""Description of the routes of files and batches, for `/openapi.json`."""

import msgspec

from kairos.batches.records import (
    ENDPOINTS,
    IDEMPOTENCY_KEY,
    MAX_KEPT_S,
    MAX_KEY,
    MAX_METADATA,
    MAX_VALUE,
    MIN_KEPT_S,
)
from kairos.batches.views import BatchList, BatchObject, FileDeleted, FileList, FileObject
from kairos.gateway import Json, describe_operation, in_path, json_of

MAX_FILES = 10_000  # in one response
BATCHES, MAX_BATCHES = 20, 100  # the same
MAX_KEY_CHARACTERS = 255  # of an `Idempotency-Key`

_TEXT: Json = {"type": "string"}
_AFTER: Json = {"name": "after", "in": "query", "schema": _TEXT}
_ORDER: Json = {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}}
_PURPOSE: Json = {"name": "purpose", "in": "query", "schema": _TEXT}
_KEY: Json = {
    "name": IDEMPOTENCY_KEY,
    "in": "header",
    "description": "Identifies a request and its retries, which make nothing new",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARACTERS},
}
_UPLOAD: Json = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "purpose": {"const": "batch"},
                "file": {"type": "string", "format": "binary"},
            },
            "required": ["purpose", "file"],
        }
    }
}

# A number of seconds, minutes, hours or days, all of them below a week.
_WINDOW = "^([1-9][0-9]{0,4}s|[1-9][0-9]{0,3}m|([1-9][0-9]?|1[0-5][0-9]|16[0-8])h|[1-7]d)$"


class _Expiry(msgspec.Struct, frozen=True):
    anchor: str
    seconds: int


class BatchAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: _Expiry | None = None


def with_batches(described: Json) -> Json:
    """Add the routes of files and batches to an OpenAPI description."""
    views, schemas = msgspec.json.schema_components(
        (FileObject, FileList, FileDeleted, BatchObject, BatchList, BatchAsked),
        ref_template="#/components/schemas/{name}",
    )
    file, files, deleted, batch, batches, asked = views
    _bound(schemas)
    content: Json = {"application/octet-stream": {}}
    file_id, batch_id = in_path("file_id"), in_path("batch_id")
    paths: Json = {
        "/v1/files": {
            "post": describe_operation("Upload a file of calls", json_of(file), _KEY, body=_UPLOAD),
            "get": describe_operation(
                "The tenant's files", json_of(files), _limit(MAX_FILES), _AFTER, _ORDER, _PURPOSE
            ),
        },
        "/v1/files/{file_id}": {
            "get": describe_operation("One of them", json_of(file), file_id),
            "delete": describe_operation("Delete it", json_of(deleted), file_id),
        },
        "/v1/files/{file_id}/content": {
            "get": describe_operation("What is in it", content, file_id)
        },
        "/v1/batches": {
            "post": describe_operation(
                "Make the calls of a file", json_of(batch), _KEY, body=json_of(asked)
            ),
            "get": describe_operation(
                "The tenant's batches, the latest first",
                json_of(batches),
                _limit(MAX_BATCHES, BATCHES),
                _AFTER,
            ),
        },
        "/v1/batches/{batch_id}": {
            "get": describe_operation("One of them", json_of(batch), batch_id)
        },
        "/v1/batches/{batch_id}/cancel": {
            "post": describe_operation("Make no more of its calls", json_of(batch), batch_id)
        },
    }
    components = described["components"]
    all_schemas = {**components["schemas"], **schemas}
    return {
        **described,
        "paths": {**described["paths"], **paths},
        "components": {**components, "schemas": all_schemas},
    }


def _bound(schemas: Json) -> None:
    """Add the constraints that the types do not have."""
    fields = schemas["BatchAsked"]["properties"]
    fields["endpoint"] = {"enum": list(ENDPOINTS)}
    fields["completion_window"] = {"type": "string", "pattern": _WINDOW}
    fields["metadata"] = {
        "type": ["object", "null"],
        "additionalProperties": {"type": "string", "maxLength": MAX_VALUE},
        "propertyNames": {"maxLength": MAX_KEY},
        "maxProperties": MAX_METADATA,
    }
    fields["output_expires_after"] = {
        "type": ["object", "null"],
        "properties": {
            "anchor": {"const": "created_at"},
            "seconds": {"type": "integer", "minimum": MIN_KEPT_S, "maximum": MAX_KEPT_S},
        },
        "required": ["anchor", "seconds"],
    }


def _limit(most: int, usual: int | None = None) -> Json:
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": usual or most}
    return {"name": "limit", "in": "query", "schema": schema}
