# fetch SUITE KERNEL QEMU FOLDER: a kernel and an emulator of Debian, unpacked into FOLDER/kernel and
# FOLDER/qemu. Installs nothing and needs no root. What has left the suite is replaced by what is
# there now, which FOLDER/note says.
set -euo pipefail
suite=$1 kernel=$2 qemu=$3
mkdir -p "$4"; cd "$4"; here=$PWD; PATH=$PATH:/usr/sbin:/sbin
mkdir -p apt/{lists,cache/archives}/partial apt/kernel; : > apt/status; : > note
mirror=$(apt-get indextargets --format '$(REPO_URI)' | awk '/\/debian\/$/ && !found++')
[ -n "$mirror" ] || { echo "apt-get indextargets names no mirror of Debian" >&2; exit 1; }
signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
printf "deb $signed $mirror %s main\n" "$suite" "$suite-backports" > apt/sources.list
cat > apt/conf <<END
Dir::Etc::SourceList "$here/apt/sources.list"; Dir::Etc::SourceParts "-";
Dir::State::Lists "$here/apt/lists"; Dir::State::status "$here/apt/status";
Dir::Cache "$here/apt/cache"; Dir::Cache::pkgcache "packages"; Dir::Cache::srcpkgcache "";
Debug::NoLocking "1"; APT::Sandbox::User "root"; APT::Update::Error-Mode "any";
Acquire::Languages "none"; Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2"; Acquire::http::Timeout "30";
END
get() { apt-get -c "$here/apt/conf" -qq "$@"; }
ask() { apt-cache -c "$here/apt/conf" "$@"; }
replace() { echo "$1 has left $suite; $2 is used: pin it in xtask/src/vm/versions.toml" >> note; }
# unpack TREE PACKAGE...: with the links of a merged /usr.
unpack() {
  local tree=$1 package link; shift
  for link in bin sbin lib lib64; do mkdir -p "$tree/usr/$link"; ln -sfn "usr/$link" "$tree/$link"; done
  for package; do
    dpkg-deb --fsys-tarfile "$package" |
      tar -x --no-same-owner --no-same-permissions --keep-directory-symlink -C "$tree"
  done
}

get update
emulator=qemu-system-x86
if [[ "$(ask madison $emulator)" == *" $qemu "* ]]; then
  emulator+="=$qemu"
else
  now=$(ask policy -t "$suite-backports" $emulator | sed -n 's/.*Candidate: //p')
  replace "$emulator $qemu" "$now"
fi
# With its libraries, down to libc.
get -t "$suite-backports" -y -d --no-install-recommends install "$emulator"
unpack qemu apt/cache/archives/*.deb

if [ -z "$(ask madison "linux-image-$kernel")" ]; then
  now=$(ask depends "linux-image-amd64/$suite-backports" | sed -n 's/.*Depends: linux-image-//p')
  replace "Linux $kernel" "$now"; kernel=$now
fi
# The image is a package with all of it, or one that needs these.
packages=("linux-"{binary,modules,base}"-$kernel")
[ -n "$(ask madison "${packages[0]}")" ] || packages=("linux-image-$kernel")
(cd apt/kernel; get download "${packages[@]}")
unpack kernel apt/kernel/*.deb
depmod -b kernel "$kernel"
rm -rf apt
