"""The native energy task: geometry, networks, energy loss, statistics, control of the splines."""
