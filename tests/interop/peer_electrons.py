"""Which spin orbitals of each element DeePMD-kit takes to be occupied. Runs in DeePMD-kit's venv."""

from __future__ import annotations

from deepmd.utils.econf_embd import electronic_configuration_embedding

for name, values in electronic_configuration_embedding.items():
    print(name + "".join("+" if value > 0 else "-" for value in values))
