"""`foretell verify-engine`: the installed vLLM's own scheduler against the twin, step by step.

`features` are what is compared, each in random scenarios (`scenarios`) that have little else;
`recorder` is what vLLM does with one, through its scheduler (`installed`) in an engine's loop
(`engine_loop`); `compare` finds the first difference. They run under the engine's Python, where
`__main__` writes the findings; `run` starts that, and keeps them for the plugin.
"""
