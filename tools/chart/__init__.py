"""The Helm chart in `deploy/helm/foretell`: its values' schema, and manifests rendered by it."""
