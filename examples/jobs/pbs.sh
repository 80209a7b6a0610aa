#!/bin/bash
# Two nodes, a worker for every eight cores: qsub pbs.sh, in the folder of the input file.
#PBS -N lockstep
#PBS -l select=2:ncpus=32:mpiprocs=4:ompthreads=8
#PBS -l walltime=24:00:00
#PBS -r y
#PBS -j oe

set -eu
cd "$PBS_O_WORKDIR"
# The environment that Lockstep is installed in.
source "${LOCKSTEP_VENV:-$HOME/lockstep/.venv}/bin/activate"
# PBS lists a node as often as it is to have workers.
mpirun -np "$(wc -l < "$PBS_NODEFILE")" -hostfile "$PBS_NODEFILE" dp train input.json -l train.log --restart auto
