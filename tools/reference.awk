# The manual page symccl(3) from the comments of symccl.h: every comment at the start of a line goes
# with the declarations below it. -v version=X.Y.Z
function text(s) { # of a comment or a declaration, for roff
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	return s ~ /^[.']/ ? "\\&" s : s
}
function flush_decl() {
	if (decl != "" && (decl ~ /SYMCCL_API/ || decl ~ /typedef/ || decl ~ /#define SYMCCL_/) && shown) {
		gsub(/SYMCCL_API /, "", decl)
		printf ".PP\n.nf\n.ft CW\n%s.ft\n.fi\n", decl
		if (doc != "")
			printf ".RS\n%s.RE\n", doc
	}
	decl = doc = ""
}
BEGIN {
	printf ".TH SYMCCL 3 \"\" \"symccl %s\" \"symccl\"\n.SH NAME\nsymccl \\- the functions of symccl.h\n", version
	print ".SH SYNOPSIS\n.nf\n.B #include <symccl.h>\n.fi\n.SH DESCRIPTION"
}
/^\/\* ---- .* -+ \*\/$/ {
	flush_decl()
	sub(/^\/\* -+ /, ""); sub(/ -+ \*\/$/, "")
	printf ".SH %s\n", toupper(text($0))
	shown = 1
	next
}
/^\/\*/ { flush_decl(); comment = 1 }
comment {
	last = /\*\/$/
	sub(/^\/\* ?/, ""); sub(/^ \*\/?/, ""); sub(/^ /, ""); sub(/ *\*\/$/, "")
	doc = doc (/^[ \t]*$/ ? (doc == "" || last ? "" : ".PP\n") : text($0) "\n")
	if (last)
		comment = 0
	if (last && !shown && !described++) { # the file's own
		printf "%s", doc
		doc = ""
		shown = 0
	}
	next
}
/^#define SYMCCL_H$|^#define SYMCCL_API |^#ifndef SYMCCL_H|^extern|^#ifdef|^#endif|^}$|^#include/ { if (/^#endif/) shown = 0; next }
/^[ \t]*$/ { flush_decl(); next }
{ shown = described ? 1 : shown; decl = decl text($0) "\n" }
END { flush_decl() }
