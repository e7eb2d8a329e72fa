"""`foretell verify-engine`: the installed vLLM's own scheduler against the twin, step by step.

`features` lists what is compared, each in random scenarios (`scenarios`) with little else.
`recorder` records what vLLM's scheduler (`installed`) does with a scenario in an engine's loop
(`engine_loop`); `compare` finds the first difference. They run under the engine's Python, where
`__main__` writes the findings; `run` starts it, and stores the findings for the plugin.
"""
