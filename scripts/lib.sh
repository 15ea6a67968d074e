# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts share: the package list, its installation, and configuring by preset. Sourced from the root of
# the tree, never run.

# All that the host half, its tests (the Python package's among them) and its benchmarks need, by the names of Debian 12
# and Ubuntu 24.04.
packstone_packages=(
  g++ cmake ninja-build ccache git ca-certificates
  libcli11-dev libfmt-dev nlohmann-json3-dev
  libboost-dev libboost-iostreams-dev zlib1g-dev libzstd-dev libssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev
  python3-dev python3-venv
)

# install_packages [PACKAGE...]: installs those of the list, and the ones named, that are missing.
install_packages() {
  local missing=() package
  for package in "${packstone_packages[@]}" "$@"; do
    if [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) != ii* ]]; then
      missing+=("$package")
    fi
  done
  ((${#missing[@]} == 0)) && return 0
  if ! command -v apt-get >/dev/null; then
    echo "packstone: no apt-get here; install by hand what these Debian packages hold: ${missing[*]}" >&2
    return 1
  fi
  echo "packstone: installing ${missing[*]}" >&2
  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "packstone: not root and no sudo; as root run: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

# device_architecture: this machine's GPU, as CMAKE_CUDA_ARCHITECTURES takes it; empty without one.
device_architecture() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '.' || true)
  case $capability in
    '') ;;
    12*) echo "${capability}a-real" ;;
    *) echo "$capability-real" ;;
  esac
}

# has_nvcc: also finds a toolkit that is installed but not on the path, as CUDA's own packages leave it.
has_nvcc() {
  if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
    export PATH="$PATH:/usr/local/cuda/bin"
  fi
  command -v nvcc >/dev/null
}

# configure PRESET [CMAKE ARGUMENTS]: configures build/PRESET. Cheap when nothing has changed.
configure() {
  local preset=$1
  shift
  has_nvcc || true
  # Objects compiled in one checkout serve another: paths below it are hashed as relative ones.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
  cmake --preset "$preset" "$@" >/dev/null
}
