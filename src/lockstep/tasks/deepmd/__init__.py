"""DeePMD-kit's own models in this program's loop: built, given data and asked for their loss here, and nowhere else.

No other package knows a name of DeePMD-kit's Python code. `deepmd.pt` takes seconds to import, so that only runs of
such models do: every import of it is inside a function, behind `package.load`.
"""
