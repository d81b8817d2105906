# Homebrew formula; packaging/package fills in the version, the repository and the checksum.
class Lily < Formula
  desc "Runs Qwen3.6-35B-A3B on one machine, with kernels written for it"
  homepage "https://github.com/@REPOSITORY@"
  url "https://github.com/@REPOSITORY@/releases/download/v@VERSION@/lily-@VERSION@-macos-arm64.tar.gz"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on macos: :sonoma

  def install
    bin.install "lily"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/lily --version")
    assert_match "tokens", shell_output("#{bin}/lily inspect --machine m5-max")
  end
end
