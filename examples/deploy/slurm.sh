#!/bin/bash
# One site of a run as a Slurm job: daemon and training script on one node, until the time is up or the run ends.
#
#   sbatch examples/deploy/slurm.sh /scratch/heart Cleveland=ID@HOST:PORT -- python train.py
#
# The site (key, configuration, journal) lies in the folder and stays between jobs: the next job is the same site, which
# joins again with the state of the others. The first job makes it; a member lets it in once, with `chaosd accept ID`.
#SBATCH --job-name=chaos-site
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=08:00:00
#SBATCH --requeue
# Two minutes before the end the daemon is asked to leave: the others do not wait for a site that vanishes.
#SBATCH --signal=B:TERM@120
set -euo pipefail

if [[ $# -lt 4 || $3 != "--" ]]; then
    echo "usage: sbatch $0 FOLDER NAME=SITE@HOST:PORT -- COMMAND" >&2
    exit 2
fi
folder=$1
peer=$2
shift 3
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
listen="0.0.0.0:${CHAOS_PORT:-7400}"

# `exec`: the signal of Slurm reaches chaosd itself. It dials its peer, so no port of the cluster has to be open; the
# address of this node is told to the others all the same, for those inside.
exec chaosd up "$folder" --name "${CHAOS_NAME:-slurm}" --run "${CHAOS_RUN:-default}" --peer "$peer" \
    --listen "$listen" --advertise "$(hostname -f):${CHAOS_PORT:-7400}" -- "$@"
