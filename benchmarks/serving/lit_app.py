"""A LitServe server for a model. Arguments: package, port, largest batch, and waiting time."""

from __future__ import annotations

import sys

import litserve
import torch

import modpack


class Api(litserve.LitAPI):
    def setup(self, device):
        self.model = modpack.load(sys.argv[1])

    def decode_request(self, request):
        return torch.tensor(request["x"])

    def batch(self, inputs):
        self.rows = [len(each) for each in inputs]
        return torch.cat(inputs)

    def predict(self, x):
        with torch.inference_mode():
            return self.model(x)

    def unbatch(self, output):
        return output.split(self.rows)

    def encode_response(self, output):
        return {"output": output.tolist()}


if __name__ == "__main__":
    batch = int(sys.argv[3])
    api = Api(max_batch_size=batch, batch_timeout=float(sys.argv[4]) if batch > 1 else 0.0)
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(
        port=int(sys.argv[2]),
        host="127.0.0.1",
        log_level="warning",
        generate_client_file=False,  # in the working directory, which is this folder
    )
