"""The JSON Schema of cluster files, which ships as `cluster.schema.json` for editors."""

import json

from foretell.config.cluster import Cluster


def cluster_schema() -> str:
    """The schema's text."""
    schema = Cluster.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=1).replace("\\n", " ") + "\n"  # descriptions are wrapped
