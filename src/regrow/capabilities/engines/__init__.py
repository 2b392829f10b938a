"""What writes the answers of generative items: transformers in this process, vLLM, or an OpenAI-compatible endpoint."""
