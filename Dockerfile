# The two images of Heddle: `--target operator` (no torch, no command `heddle`) and `--target worker`, the last and default.
# BASE: any image with Python 3.11 to 3.13 and pip.
ARG BASE=docker.io/library/python:3.11-slim

# What builds: uv and hatchling of the lock, and Heddle's wheel.
FROM ${BASE} AS build
WORKDIR /heddle
COPY requirements.lock requirements-operator.lock requirements-worker.lock ./
RUN awk '/^[a-z0-9]/ { on = $0 ~ /^(uv|hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } on' \
        requirements.lock > build.lock \
    && pip install --no-cache-dir --require-hashes -r build.lock
COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY migration migration
COPY worker worker
COPY heddle_operator heddle_operator
COPY heddle heddle
COPY profiles profiles
RUN python3 -m hatchling build -t wheel

# The planner's estimator is compiled in each image, for any CPU of the architecture.  What is compiled
# knows its source by its time, of which a layer keeps whole seconds only.
FROM build AS operator-build
ENV NUMBA_CPU_NAME=generic
RUN uv venv /opt/heddle \
    && uv pip install --python /opt/heddle/bin/python --no-cache --require-hashes \
        -r requirements-operator.lock \
    && uv pip install --python /opt/heddle/bin/python --no-cache --no-deps dist/*.whl \
    && rm -r /opt/heddle/bin/heddle /opt/heddle/lib/python3*/site-packages/heddle \
    && find /opt/heddle -type d \( -name tests -o -name test \) -path '*/site-packages/n*' \
        -exec rm -rf {} + \
    && find /opt/heddle -name '*.py' -exec touch --date=@0 {} + \
    && cd / && /opt/heddle/bin/python -m planner.compilation \
    && /opt/heddle/bin/python -m compileall -q /opt/heddle/lib/python3*/site-packages/heddle_operator

# The estimator is of the same sources, and not compiled a second time.
FROM build AS worker-build
ENV NUMBA_CPU_NAME=generic
COPY --from=operator-build /opt/heddle /operator
RUN uv venv /opt/heddle \
    && uv pip install --python /opt/heddle/bin/python --no-cache --require-hashes \
        -r requirements-worker.lock \
    && uv pip install --python /opt/heddle/bin/python --no-cache --no-deps dist/*.whl
# Of what torch's wheels bring, what training loads nowhere: a compiler, headers, static libraries,
# tools that measure, and CUDA's libraries for several GPUs of one process.
RUN cd /opt/heddle/lib/python3*/site-packages && rm -rf \
        triton triton-*.dist-info \
        nvidia/*/include nvidia/cu13/cccl nvidia/*/lib/*.a nvidia/*/lib/*.bc \
        nvidia/cu13/lib/libcusolverMg.so.* nvidia/cu13/lib/libcufftw.so.* \
        nvidia/cu13/lib/libnvblas.so.* nvidia/cu13/lib/libnvperf_*.so \
        nvidia/cu13/lib/libpcsamplingutil.so nvidia/cu13/lib/libcheckpoint.so \
    && find /opt/heddle -name '*.py' -exec touch --date=@0 {} + \
    && /opt/heddle/bin/python -m compileall -q -j 0 /opt/heddle/lib \
    && cd /operator/lib && cp -r --parents python3*/site-packages/planner/estimator/__pycache__/numba-* \
        /opt/heddle/lib \
    && cd / && /opt/heddle/bin/python -m planner.compilation

# COMMIT: of the sources, which the operator's metrics name; last, so that it makes nothing anew.
FROM ${BASE} AS operator
COPY --from=operator-build /opt/heddle /opt/heddle
ENV PATH=/opt/heddle/bin:/usr/local/bin:/usr/bin:/bin \
    NUMBA_CPU_NAME=generic \
    USER=heddle \
    HOME=/tmp
ARG COMMIT=""
ENV HEDDLE_COMMIT=${COMMIT}
USER 65532:65532
ENTRYPOINT ["python", "-m", "heddle_operator"]

# One thread for each rank: gloo and OpenMP may not start pools of their own beside the others.
# A container runtime mounts CUDA and NVML by NVIDIA_DRIVER_CAPABILITIES, also outside Kubernetes.
# torch asks for the user's name, which a pod's numeric user does not have.
FROM ${BASE} AS worker
COPY --from=worker-build /opt/heddle /opt/heddle
ENV PATH=/opt/heddle/bin:/usr/local/bin:/usr/bin:/bin \
    NUMBA_CPU_NAME=generic \
    OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    USER=heddle \
    HOME=/tmp
USER 65532:65532
ENTRYPOINT ["heddle"]
