{{/* What the load test is told. */}}

{{- define "corepipe.loadTestLabels" -}}
app.kubernetes.io/name: {{ include "corepipe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: load-test
{{- end }}

{{/* The flags of `corepipe bench`, of the values under loadTest. */}}
{{- define "corepipe.benchArgs" -}}
{{- include "corepipe.flag" (list "api" .api) }}
{{- include "corepipe.flag" (list "rate" .rate) }}
{{- include "corepipe.flag" (list "concurrency" .concurrency) }}
{{- include "corepipe.flag" (list "duration" .duration) }}
{{- include "corepipe.flag" (list "input-len" .inputLen) }}
{{- include "corepipe.flag" (list "output-len" .outputLen) }}
{{- include "corepipe.flag" (list "slo" .slo) }}
{{- range .assertions }}
{{- include "corepipe.flag" (list "assert" .) }}
{{- end }}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
