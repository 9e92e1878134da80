#!/usr/bin/env bash
# scripts/build.sh where nobody sits at a terminal: it says how far the build is, shows whole what a tool printed, and
# fails as ninja does: build.sh SOURCE-DIR
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/scripts" "$work/build" "$work/bin"
cp "$source/scripts/build.sh" "$work/scripts"
touch "$work/build/build.ninja"
cat >"$work/bin/ninja" <<'END'
#!/bin/sh
echo "ninja: Entering directory \`build'"
say() { echo "$(echo "$NINJA_STATUS" | sed "s,%p,$1,; s,%f/%t,$2,")$3"; }
say ' 10%' 1/10 'Building one'
echo 'one.c:5: warning: of a compiler'
sleep 11
say ' 40%' 4/10 'Building four'
say ' 50%' 5/10 'Building five'
echo 'FAILED: five.o'
exit 7
END
chmod +x "$work/bin/ninja"
code=0
PATH=$work/bin:$PATH "$work/scripts/build.sh" release >"$work/out" || code=$?
cat "$work/out"
[ "$code" -eq 7 ]
diff "$work/out" - <<'END'
one.c:5: warning: of a compiler
build: 40%, step 4/10
FAILED: five.o
END
