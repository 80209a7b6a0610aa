"""Slots that DeePMD-kit reserves for 1, 2, 3, ... neighbours, as JSON. Runs in DeePMD-kit's venv."""

from __future__ import annotations

import json
import sys

from deepmd.dpmodel.utils.update_sel import UpdateSel

rule = UpdateSel()
most, *settings = sys.argv[1:]
ratios = [rule.parse_auto_sel_ratio(setting) for setting in settings]
print(json.dumps([[rule.wrap_up_4(count * ratio) for count in range(1, int(most) + 1)] for ratio in ratios]))
