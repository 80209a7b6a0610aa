"""What DeePMD-kit 3.2 knows and this program does not implement: names and harmless values only.

A key given with the value listed here changes nothing, so it is accepted and dropped; any other value is
refused as "not supported yet". None stands for "no value is harmless" (other than null).
"""

from __future__ import annotations

TOP_LEVEL: dict[str, object] = {
    "nvnmd": None,
    "loss_dict": None,
    "optim_dict": None,
}

VALIDATING: dict[str, object] = {
    "ema_full_validation": False,
    "compiled_infer": False,
    "tf32_infer": False,
    "amp_infer": False,
}

MODEL: dict[str, object] = {
    "data_bias_nsample": 10,
    "use_srtab": None,
    "smin_alpha": None,
    "sw_rmin": None,
    "sw_rmax": None,
    "pair_exclude_types": [],
    "atom_exclude_types": [],
    "preset_out_bias": None,
    "srtab_add_bias": True,
    "type_embedding": None,
    "modifier": None,
    "compress": None,
    "spin": None,
    "finetune_head": None,
    "model_branch_alias": [],
    "info": {},
    "bridging_method": "None",
    "bridging_r_inner": 0.5,
    "bridging_r_outer": 0.8,
    "model_dict": None,
    "shared_dict": None,
}

FITTING_NET: dict[str, object] = {
    "default_fparam": None,
    "dim_case_embd": 0,
    "layer_name": None,
    "use_aparam_as_mask": False,
}

LOSS: dict[str, object] = {
    "start_pref_h": 0.0,
    "limit_pref_h": 0.0,
    "start_pref_gf": 0.0,
    "limit_pref_gf": 0.0,
    "numb_generalized_coord": 0,
    "enable_atom_ener_coeff": False,
}

TRAINING: dict[str, object] = {
    "ckpt_keep_ratio": None,
    "change_bias_after_training": False,
    "enable_profiler": False,
    "neighbor_graph_method": "auto",
    "enable_compile": False,
    "enable_tf32": False,
    "data_dict": None,
    "model_prob": None,
    "num_epoch_dict": None,
}

MODEL_TYPES = ("dpa4", "DPA4", "SeZM", "sezm", "frozen", "pairtab", "pairwise_dprc", "linear_ener")
DESCRIPTOR_TYPES = (
    "loc_frame",
    *("dpa4c", "DPA4C", "dpa4", "DPA4", "SeZM", "sezm"),
    *("se_e3", "se_at", "se_a_3be", "se_t"),
    *("se_a_tpe", "se_a_ebd", "se_a_ebd_v2", "se_a_tpe_v2"),
    *("se_e3_tebd", "se_a_mask", "dpa2", "dpa3"),
)
FITTING_TYPES = ("dpa4_ener", "sezm_ener", "dos", "population", "property", "polar", "dipole")
OPTIMIZER_TYPES = ("LKF", "AdaMuon", "HybridMuon")
LOSS_TYPES = ("dens", "ener_spin", "dos", "population", "property", "tensor")

TRAINING_MOVED = {
    "systems": "training.training_data.systems",
    "batch_size": "training.training_data.batch_size",
    "sys_probs": "training.training_data.sys_probs",
    "sys_prob": "training.training_data.sys_probs",
    "sys_weights": "training.training_data.sys_probs",
    "auto_prob": "training.training_data.auto_prob",
    "auto_prob_style": "training.training_data.auto_prob",
    "rglob_patterns": "training.training_data.rglob_patterns",
    "opt_type": "optimizer.type",
    "adam_beta1": "optimizer.adam_beta1",
    "adam_beta2": "optimizer.adam_beta2",
    "weight_decay": "optimizer.weight_decay",
    "warmup_steps": "learning_rate.warmup_steps",
    "warmup_ratio": "learning_rate.warmup_ratio",
    "warmup_start_factor": "learning_rate.warmup_start_factor",
}
