# What tools/package --try does in a fresh Debian 12.
cd /try
say() { echo "== $*"; }
quiet() { "$@" > /try/log 2>&1 || { echo "failed: $*"; cat /try/log; exit 1; }; }
listing() { find / -xdev \( -path /try -o -path /proc -o -path /dev -o -path /run -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /tmp \) -prune -o -print | sort; }

quiet apt-get update
quiet apt-get install -y --no-install-recommends gcc g++ cmake make pkg-config python3 python3-venv man-db bash systemd
listing > before
cat /etc/passwd > passwd.before

say "apt install"
quiet apt-get install -y --no-install-recommends ./*.deb
dpkg-query -W -f '${Package} ${Version} ${Architecture}: ${Installed-Size} KiB, ${db:Status-Abbrev}\n' libprd0 libprd-dev prd prdctl python3-prd
prd --version
prd --check-config
getent passwd prd
systemd-analyze verify /lib/systemd/system/prd.service && echo "prd.service: systemd finds nothing wrong"
test -L /etc/systemd/system/multi-user.target.wants/prd.service && echo "prd.service: enabled"
man --warnings prd > /try/man 2> /try/log && man prdctl > /dev/null && man prd.toml > /dev/null && test ! -s /try/log && echo "man: prd, prdctl and prd.toml are there"

say "prd.run"
python3 -m prd.run -n 3 --engine all-reduce trial/train.py

say "a program in C, with pkg-config; prd --ephemeral"
cc -std=c11 -O2 /usr/share/doc/libprd-dev/examples/train_linear.c -o linear $(pkg-config --cflags --libs prd)
sed 's/^workers = .*/workers = 3/' /usr/share/prd/p-reduce.toml > job.toml
prd --ephemeral --config job.toml --env-file prd.env --listen 'tcp://127.0.0.1:*' --address 127.0.0.1 2> prd.log &
daemon=$!
until [ -e prd.env ]; do kill -0 $daemon || { cat prd.log; exit 1; }; sleep 0.1; done
(. ./prd.env; export PRD_JOB=linear; PRD_RANK=1 ./linear 200 & PRD_RANK=2 ./linear 200 & PRD_RANK=0 ./linear 200; wait)
wait $daemon

say "programs in C and C++, with CMake's find_package"
quiet cmake -S consumer -B consumer.build
quiet cmake --build consumer.build
{ consumer.build/consumer && consumer.build/c_consumer; } 2> /dev/null && echo "they run"

say "the daemon with /etc/prd/prd.toml as it is installed, as its unit runs it: with these folders, as the user prd"
install -d -o prd -g prd -m 0700 /var/lib/prd
install -d -o prd -g prd /run/prd
RUNTIME_DIRECTORY=/run/prd setpriv --reuid prd --regid prd --clear-groups prd 2> prd.log &
daemon=$!
until prdctl status > /dev/null 2>&1; do kill -0 $daemon || { cat prd.log; exit 1; }; sleep 0.1; done
PRD_JOB=first PRD_RANK=0 PRD_WORLD_SIZE=1 ./linear 20
prdctl jobs
kill $daemon
wait $daemon

if [ "$PRD_TRY_TORCH" = 1 ]; then
  say "PyTorch"
  quiet apt-get install -y --no-install-recommends python3-torch python3-numpy
  for engine in all-reduce p-reduce; do python3 -m prd.run -n 2 --engine $engine trial/train_torch.py; done
  quiet apt-get purge -y python3-torch python3-numpy
  quiet apt-get autoremove -y --purge
fi

say "apt remove, then purge"
quiet apt-get remove -y prd prdctl libprd-dev libprd0 python3-prd
test -f /etc/prd/prd.toml && test -d /var/lib/prd && echo "after remove: the configuration and the history are there"
quiet apt-get purge -y prd
quiet apt-get autoremove -y --purge
listing > after
diff before after | grep -v '/var/lib/dpkg/\|__pycache__' > left || true
diff passwd.before /etc/passwd | grep '^[<>]' >> left || true
echo "left after purge:"
cat left
grep -v '^> prd:' left | grep -v '/etc/\(passwd\|group\|shadow\|gshadow\)-$' | grep '^[<>]' && { echo "purge leaves more than the user prd"; exit 1; }

say "pip install, without any of these packages"
test ! -e /usr/bin/prd
python3 -m venv venv
quiet venv/bin/pip install --no-index ./prd-*.whl
venv/bin/prd --version
venv/bin/prdctl --version
ldd venv/lib/python3*/site-packages/prd/.libs/libprd.so.0 | grep -c "site-packages/prd/.libs" | sed 's/$/ libraries come out of the wheel/'
venv/bin/python -m prd.run -n 3 --engine all-reduce trial/train.py
say "all of it works"
