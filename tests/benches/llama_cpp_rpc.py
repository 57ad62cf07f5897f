"""llama.cpp with its layers on rpc-servers, as something that can be measured.

Needs llama-cpp-python built with RPC: CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_RPC=ON" pip install llama-cpp-python
"""

import ctypes
import glob
import os
import socket
import subprocess
import sys
import time

CHUNK = 512


def library(name):
    import llama_cpp

    folder = os.path.join(os.path.dirname(llama_cpp.__file__), "lib")
    return ctypes.CDLL(sorted(glob.glob(os.path.join(folder, f"lib{name}.so*")))[0])


def serve(port):
    """What the process of a server does: one CPU device with one thread, until it is killed."""
    import llama_cpp  # loads the libraries in the right order

    assert llama_cpp.llama_supports_rpc()
    base, cpu, rpc = library("ggml-base"), library("ggml-cpu"), library("ggml-rpc")
    cpu.ggml_backend_cpu_reg.restype = ctypes.c_void_p
    base.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
    base.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    device = base.ggml_backend_reg_dev_get(cpu.ggml_backend_cpu_reg(), 0)
    devices = (ctypes.c_void_p * 1)(device)
    start = rpc.ggml_backend_rpc_start_server
    start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    start(f"127.0.0.1:{port}".encode(), None, 1, 1, devices)


class RpcPeer:
    """A model whose layers lie on as many servers of one thread."""

    def __init__(self, options):
        self.options = options

    def __enter__(self):
        ports = []
        for _ in range(self.options.shards):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        command = lambda port: [sys.executable, __file__, str(port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.servers = [subprocess.Popen(command(port), **quiet) for port in ports]
        for port in ports:
            self.await_port(port)
        self.load([f"127.0.0.1:{port}" for port in ports])
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.kill()
            server.wait()

    @staticmethod
    def await_port(port):
        for _ in range(600):
            try:
                return socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                time.sleep(0.05)
        raise SystemExit("an rpc-server does not come")

    def load(self, servers):
        import llama_cpp

        self.api = llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.quiet, None)
        base, rpc = library("ggml-base"), library("ggml-rpc")
        rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
        rpc.ggml_backend_rpc_add_server.argtypes = [ctypes.c_char_p]
        base.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
        base.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        found = [base.ggml_backend_reg_dev_get(rpc.ggml_backend_rpc_add_server(s.encode()), 0) for s in servers]
        self.devices = (ctypes.c_void_p * (len(found) + 1))(*found, None)
        parameters = llama_cpp.llama_model_default_params()
        parameters.devices = ctypes.addressof(self.devices)
        parameters.n_gpu_layers = 999
        self.model = llama_cpp.llama_model_load_from_file(self.options.model.encode(), parameters)
        assert self.model, "llama.cpp cannot load the model over RPC"
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = 4096, 5
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_threads = settings.n_threads_batch = 1
        settings.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        assert self.context, "llama.cpp refuses these settings"
        self.tokens = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def run(self, rows):
        """Runs rows of (position, sequence, is wanted); returns the seconds."""
        api = self.api
        batch = api.llama_batch_init(len(rows), 0, 1)
        for index, (position, sequence, wanted) in enumerate(rows):
            batch.token[index] = (position + 1) * 2654435761 % self.tokens
            batch.pos[index], batch.n_seq_id[index] = position, 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        batch.n_tokens = len(rows)
        begun = time.perf_counter()
        assert api.llama_decode(self.context, batch) == 0
        api.llama_synchronize(self.context)
        seconds = time.perf_counter() - begun
        api.llama_batch_free(batch)
        return seconds

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def decode(self, users):
        """Tokens per second of all users together."""
        self.clear()
        for user in range(users):
            self.run([(position, user, position == 15) for position in range(16)])
        count = self.options.tokens
        seconds = sum(self.run([(16 + step, user, True) for user in range(users)]) for step in range(count))
        return users * count / seconds

    def prefill(self):
        """Tokens per second."""
        self.clear()
        count = self.options.prompt
        return count / self.run([(position, 0, position == count - 1) for position in range(count)])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
