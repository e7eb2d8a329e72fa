"""`foretell check`: what Foretell is worth on this machine, in ten minutes.

Engines are started once (`engines`), then stages run one after the other, each within its share of
the time (`budget`), and each writes its result before the next begins: `attach`, `cost`, `truth`,
`cluster`, `beside`. `run` drives them, and `page` makes one page of the results in a folder, so
that a killed run keeps what it has measured. vLLM loads `in_engine`.
"""
