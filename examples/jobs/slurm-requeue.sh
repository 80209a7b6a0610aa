#!/bin/bash
# A training that is longer than the queue allows: sbatch slurm-requeue.sh, once, in the folder of the input file.
#
# Slurm puts a preempted job back into the queue by itself, but not one whose time is up. Two minutes before that, the
# workers are asked to stop; they save and end with code 143, and the job puts itself back. It ends with the training.
#SBATCH --job-name=lockstep
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

set -u
# The environment that Lockstep is installed in.
source "${LOCKSTEP_VENV:-$HOME/lockstep/.venv}/bin/activate"
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" dp train input.json -l train.log --restart auto
code=$?
if [ "$code" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
