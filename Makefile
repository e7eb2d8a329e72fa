PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: proto
proto: ## Regenerate foretell/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. --grpc_python_out=. proto/foretell/v1/*.proto
	touch foretell/v1/__init__.py
