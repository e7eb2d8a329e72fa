"""`python -m services.backend`: an engine with its predictor sidecar."""

from services.backend.launcher import main

if __name__ == "__main__":
    main()
