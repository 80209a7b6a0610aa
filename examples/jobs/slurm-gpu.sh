#!/bin/bash
# Two nodes of four GPUs, a worker for each: sbatch slurm-gpu.sh, in the folder of the input file.
#SBATCH --job-name=lockstep
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@60
#SBATCH --requeue
#SBATCH --open-mode=append

set -eu
# The environment that Lockstep is installed in.
source "${LOCKSTEP_VENV:-$HOME/lockstep/.venv}/bin/activate"
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" dp train input.json -l train.log --restart auto
