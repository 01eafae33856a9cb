# The package with everything it trains with, on a CPU:
#   docker build -t synthesizer .
#   docker run --rm -v "$PWD:/data" synthesizer compare reviews.csv --out study
# On Linux pip's default torch brings several gigabytes of CUDA. To get the CPU build, name the
# index that holds it (pytorch.org/get-started): docker build --build-arg PIP_ARGS="--extra-index-url ..." .
FROM python:3.11-slim
ARG PIP_ARGS=""

# gcc builds the CPU kernel on first use; without it PyTorch does the work.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

COPY . /source
RUN pip install --no-cache-dir $PIP_ARGS -c /source/constraints.txt "/source[train]" && rm -r /source

RUN useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["synthesizer"]
