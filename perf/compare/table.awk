# Lines "round who row bytes mode us", "round who L ns", "round who C gbs" -> the table, and one line
# of JSON in the file named by json.

function median(list, n,    i, j, t) { # sorts list[1..n]
	for (i = 2; i <= n; i++) {
		t = list[i]
		for (j = i - 1; j > 0 && list[j] > t; j--)
			list[j + 1] = list[j]
		list[j + 1] = t
	}
	return n == 0 ? 0 : n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

function human(bytes) {
	return bytes >= 1048576 ? bytes / 1048576 "M" : bytes >= 1024 ? bytes / 1024 "K" : bytes
}

# Median over rounds of who's time; 0 where it has none.
function over_rounds(who, key,    r, n, v) {
	for (r = 1; r <= rounds; r++)
		if ((r, who, key) in us)
			v[++n] = us[r, who, key]
	return median(v, n)
}

# Per round the ratio of the two, whose median is what counts.
function ratios(best, key,    r, n, v) {
	for (r = 1; r <= rounds; r++)
		if (us[r, "symccl", key] > 0 && us[r, best, key] > 0)
			v[++n] = us[r, best, key] / us[r, "symccl", key]
	ratio = median(v, n)
	least = v[1]
	most = v[n]
}

{
	rounds = $1 > rounds ? $1 : rounds
	if (!($2 in seen)) {
		seen[$2] = 1
		who[++nwho] = $2
		g = group($2)
		if (g != "" && !(g in grouped)) {
			grouped[g] = 1
			groups[++ngroups] = g
		}
	}
}
$3 == "L" && $4 > 0 { L[++nL] = $4 }
$3 == "C" && $4 > 0 { C[++nC] = $4 }
$3 == "row" {
	key = $4 " " $5
	us[$1, $2, key] = $6
	if (!(key in known)) {
		known[key] = 1
		if ($5 == "dirty")
			dirty[++ndirty] = key
		else
			b2b[++nb2b] = key
	}
}

function group(name) {
	return name ~ /mpi/ ? "MPI" : name ~ /^gloo/ ? "Gloo" : name ~ /_like$/ ? "LLM" : \
		name ~ /^nccl/ ? "NCCL" : name ~ /^torch/ ? "PyTorch" : ""
}

function line(key,    i, g, t, best, best_us, part, text, rest) {
	split(key, part, " ")
	text = sprintf("%8s %6s", human(part[1]), part[2])
	json_rows = json_rows sprintf("%s{\"size\": %d, \"timing\": \"%s\", \"us\": {", \
		json_rows == "" ? "" : ", ", part[1], part[2])
	for (i = 1; i <= nwho; i++) {
		t = over_rounds(who[i], key)
		text = text sprintf(t > 0 ? " %13.2f" : " %13s", t > 0 ? t : "-")
		json_rows = json_rows sprintf("%s\"%s\": %.4f", i > 1 ? ", " : "", who[i], t)
		g = group(who[i])
		if (g != "" && t > 0 && (!(g in best) || t < best_us[g])) {
			best[g] = who[i]
			best_us[g] = t
		}
	}
	json_rows = json_rows "}, \"ratios\": {"
	for (i = 1; i <= ngroups; i++) {
		g = groups[i]
		if (!(g in best)) {
			text = text sprintf("   %-14s %7s %16s", "-", "", "")
			continue
		}
		ratios(best[g], key)
		text = text sprintf("   %-14s %7.2f %16s", best[g], ratio, \
			sprintf("(%.2f to %.2f)", least, most))
		json_rows = json_rows sprintf("%s\"%s\": {\"best\": \"%s\", \"ratio\": %.3f, " \
			"\"least\": %.3f, \"most\": %.3f}", rest, g, best[g], ratio, least, most)
		rest = ", "
	}
	print text
	json_rows = json_rows "}}"
}

END {
	l = median(L, nL)
	c = median(C, nC)
	printf "#\n# %s", coll
	if (nL)
		printf ": L %.0f ns (%.0f to %.0f over runs), C %.1f GB/s (%.1f to %.1f)", \
			l, L[1], L[nL], c, C[1], C[nC]
	printf "\n"
	printf "# %6s %6s", "bytes", "timing"
	for (i = 1; i <= nwho; i++)
		printf " %13s", who[i]
	for (i = 1; i <= ngroups; i++)
		printf "   %-14s %7s %16s", "best " groups[i], "ratio", "(range)"
	printf "\n"
	for (i = 1; i <= ndirty; i++)
		line(dirty[i])
	for (i = 1; i <= nb2b; i++)
		line(b2b[i])
	printf "{\"collective\": \"%s\", \"line_latency_ns\": %.1f, \"line_latency_least\": %.1f, " \
		"\"line_latency_most\": %.1f, \"copy_gbs\": %.2f, \"rows\": [%s]}\n", \
		coll, l, L[1], L[nL], c, json_rows >json
}
